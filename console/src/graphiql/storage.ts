import type { Storage } from "@graphiql/toolkit";

/**
 * Creates a storage that ends with the page. GraphiQL would otherwise keep tabs, variables and history in the browser's
 * local storage, and with them a secret's value that was typed as a variable.
 */
export function memoryStorage(): Storage {
  const entries = new Map<string, string>();
  return {
    getItem: (key) => entries.get(key) ?? null,
    setItem: (key, value) => void entries.set(key, value),
    removeItem: (key) => void entries.delete(key),
    clear: () => entries.clear(),
    get length() {
      return entries.size;
    },
  };
}
