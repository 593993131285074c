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

export async function request(path, parameters = {}) {
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
  return response.json();
}

export const sinkPath = (name, resource) => `/api/v1/sinks/${encodeURIComponent(name)}${resource}`;
