// Runs before the page is drawn, so that it never flashes in the other theme. Local storage keeps the choice.
const THEME = "theme";

function theme() {
  try {
    const chosen = localStorage.getItem(THEME);
    if (chosen === "light" || chosen === "dark") return chosen;
  } catch {
    // Storage may be forbidden; the system's theme is used then.
  }
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

function showTheme() {
  document.documentElement.dataset.theme = theme();
  document.getElementById("theme")?.setAttribute("aria-pressed", String(theme() === "dark"));
}

showTheme();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showTheme);
document.addEventListener("DOMContentLoaded", () => {
  showTheme();
  document.getElementById("theme").addEventListener("click", () => {
    const chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try {
      localStorage.setItem(THEME, chosen);
    } catch {
      // The choice applies to this page only.
    }
    document.documentElement.dataset.theme = chosen;
    document.getElementById("theme").setAttribute("aria-pressed", String(chosen === "dark"));
  });
});
