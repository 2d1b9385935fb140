// Asks larder again and again, for as long as somebody can see the page.

import { setText } from "./view.js";

const connection = document.getElementById("connection");
let lost = null;

function visible() {
  if (document.visibilityState === "visible") return Promise.resolve();
  setText(connection, "Paused");
  return new Promise((resolve) => {
    document.addEventListener("visibilitychange", () => resolve(visible()), { once: true });
  });
}

function noteAnswer(hasAnswered) {
  lost = hasAnswered ? null : lost ?? Date.now();
  setText(connection, hasAnswered ? "Live" : "No answer");
  connection.className = hasAnswered ? "live" : "lost";
}

// Asks again and again, `every()` milliseconds after the last answer. `tellLost`: called with the time, in milliseconds,
// since when there is no answer.
export async function poll(every, ask, tellLost) {
  for (;;) {
    await visible();
    try {
      await ask();
      noteAnswer(true);
    } catch (error) {
      console.warn(error);
      noteAnswer(false);
      tellLost(lost);
    }
    await new Promise((resolve) => setTimeout(resolve, every()));
  }
}
