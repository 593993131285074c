// Asking the server. A token is kept for this tab alone.

const TOKEN = "dpsqlp-token";

export class Unauthorised extends Error {}

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

export function keepToken(token) {
  sessionStorage.setItem(TOKEN, token);
}

export async function ask(path, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== "") query.set(name, value);
  }
  const token = sessionStorage.getItem(TOKEN);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const address = query.size ? `${path}?${query}` : path;
  const answer = await fetch(address, { headers, credentials: "omit", redirect: "error" });
  if (answer.status === 401) throw new Unauthorised();
  if (!answer.ok) {
    const { error } = await answer.json().catch(() => ({}));
    throw new Refused(answer.status, error || `The server answered ${answer.status}.`);
  }
  return answer.json();
}

export const ofSink = (name, what) => `/api/v1/sinks/${encodeURIComponent(name)}${what}`;
