"""How the launcher sets up glibc's allocator for its workers. A choice of the user's, by glibc's variables, stays."""

from __future__ import annotations

from paceline.settings import all_variables

# By madvise. Without effect where the system has no huge pages, and before glibc 2.35.
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def is_users() -> bool:
    """Whether the user has set up the allocator."""
    return any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in all_variables())


def zygote_environment() -> dict[str, str]:
    """The environment of this process, in which glibc asks for huge pages: a page fault then brings 2 MiB, not 4 KiB.
    glibc reads this variable only when a process starts. The zygote removes it: the script does not see it."""
    return all_variables() | ({} if is_users() else HUGE_PAGES)
