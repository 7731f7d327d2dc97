// Whether what is shown is what there is, and what went wrong.

export function connected(isLost) {
  const place = document.getElementById("connection");
  const text = isLost ? "connection lost, trying again" : "live";
  if (place.textContent !== text) place.textContent = text;
  place.classList.toggle("lost", isLost);
}

export const told = (error) => (error instanceof TypeError ? "The service does not answer." : error.message);
