// Before anything is painted: light or dark, as the person chose, or as the system says.
"use strict";
try {
  const chosen = localStorage.getItem("paceline-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch { /* no storage: the system decides */ }
