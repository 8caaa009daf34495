// Sets the light or dark theme before the first paint: the user's choice, or else the system's.
"use strict";
try {
  const chosen = localStorage.getItem("paceline-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch { /* no storage: the system's theme applies */ }
