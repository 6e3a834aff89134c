import type { Storage } from "@graphiql/toolkit";

/**
 * Storage that ends with the page. GraphiQL would keep tabs, variables and history in the browser's, and with them a
 * secret's value that was typed as a variable.
 */
export function memoryStorage(): Storage {
  const kept = new Map<string, string>();
  return {
    getItem: (key) => kept.get(key) ?? null,
    setItem: (key, value) => void kept.set(key, value),
    removeItem: (key) => void kept.delete(key),
    clear: () => kept.clear(),
    get length() {
      return kept.size;
    },
  };
}
