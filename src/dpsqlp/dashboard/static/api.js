// Requests to the API. The token is stored for this tab only.

const TOKEN = "dpsqlp-token";

export class Unauthorized extends Error {}

export class RequestError extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

export function storeToken(token) {
  sessionStorage.setItem(TOKEN, token);
}

async function fetched(path, parameters) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== "") query.set(name, value);
  }
  const token = sessionStorage.getItem(TOKEN);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const address = query.size ? `${path}?${query}` : path;
  const response = await fetch(address, { headers, credentials: "omit", redirect: "error" });
  if (response.status === 401) throw new Unauthorized();
  if (!response.ok) {
    const { error } = await response.json().catch(() => ({}));
    throw new RequestError(response.status, error || `The server returned status ${response.status}.`);
  }
  return response;
}

export async function request(path, parameters = {}) {
  return (await fetched(path, parameters)).json();
}

// A link could not carry the token, so the file is fetched and then saved.
export async function save(path, parameters) {
  const response = await fetched(path, parameters);
  const [, name] = /filename="([\w.-]+)"/.exec(response.headers.get("Content-Disposition"));
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await response.blob());
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

export const sinkPath = (name, resource) => `/api/v1/sinks/${encodeURIComponent(name)}${resource}`;
