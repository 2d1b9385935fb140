// Requests to this larder. Paths are relative: a proxy may serve the page below a prefix.

const TOKEN = "larder-admin-token";
const TIMEOUT = 20_000;
// Longer than any key of larder, in a path.
const KEY_MAX = 48_000;

export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

let token = sessionStorage.getItem(TOKEN);
// While the user is asked, all requests wait for the same answer.
let asking = null;

export function hasToken() {
  return token != null;
}

export function forgetToken() {
  sessionStorage.removeItem(TOKEN);
  location.reload();
}

function askForToken(refused) {
  asking ??= new Promise((resolve) => {
    const dialog = document.getElementById("token-dialog");
    const input = document.getElementById("token");
    document.getElementById("token-wrong").hidden = refused == null;
    input.value = "";
    dialog.addEventListener("close", () => {
      asking = null;
      // No header, so no token, has a control character.
      token = input.value.replace(/[\0-\x1f\x7f]/g, "");
      input.value = "";
      sessionStorage.setItem(TOKEN, token);
      resolve();
    }, { once: true });
    // Without the token there is nothing to see.
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    dialog.showModal();
  });
  return asking;
}

async function send(path, options) {
  for (;;) {
    if (asking) await asking;
    const sent = token;
    const headers = new Headers(options.headers);
    if (sent != null) headers.set("Authorization", `Bearer ${encoded(sent)}`);
    const signal = AbortSignal.timeout(TIMEOUT);
    const response = await fetch(path, { cache: "no-store", ...options, headers, signal });
    if (response.status !== 401) return response;
    // The user may have given another token meanwhile.
    if (sent === token) await askForToken(sent);
  }
}

// A header has bytes: those of the text as UTF-8, each as one character.
function encoded(text) {
  return String.fromCharCode(...new TextEncoder().encode(text));
}

// The response, if it is a success.
export async function request(path, options = {}) {
  const response = await send(path, options);
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  throw new Refused(response.status, problem.detail ?? `larder answers ${response.status}`);
}

export async function read(path) {
  return (await request(path)).json();
}

// The path of a document below `verb`; `parts` is the number of columns of the resource's key. A key of several columns has
// commas between its parts, and %2C for one within a part.
export function keyPath(verb, resource, key, parts) {
  // Half of a character can't be encoded.
  if (/\p{Surrogate}/u.test(key)) throw new Refused(400, "No key has half of a character.");
  const encodedKey = parts > 1
    ? encodeURIComponent(key).replaceAll("%2C", ",").replaceAll("%25", "%")
    : encodeURIComponent(key);
  if (encodedKey.length > KEY_MAX) throw new Refused(414, "No key is that long.");
  // A path of dots would lead elsewhere, even if they are encoded.
  if (key === "." || key === "..") throw new Refused(400, "A browser can't ask for a key of dots; `larder explain` can.");
  return `${verb}/${encodeURIComponent(resource)}/${encodedKey}`;
}
