// The theme that was chosen on this machine, before anything is painted in another.

const KEY = "autotune theme";
const paint = () => {
  document.documentElement.dataset.theme = localStorage.getItem(KEY) ?? "";
  dispatchEvent(new Event("painted"));
};

paint();
addEventListener("DOMContentLoaded", () => {
  const choice = document.getElementById("theme");
  if (!choice) return;
  choice.value = localStorage.getItem(KEY) ?? "";
  choice.addEventListener("change", () => {
    choice.value ? localStorage.setItem(KEY, choice.value) : localStorage.removeItem(KEY);
    paint();
  });
});
