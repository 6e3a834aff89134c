import "graphiql/setup-workers/vite";
import "graphiql/style.css";
import "@graphiql/plugin-explorer/style.css";
import "./graphiql.css";

import { explorerPlugin } from "@graphiql/plugin-explorer";
import { HISTORY_PLUGIN } from "@graphiql/plugin-history";
import type { Fetcher } from "@graphiql/toolkit";
import { GraphiQL } from "graphiql";
import { createClient } from "graphql-ws";
import { StrictMode, useMemo, useState } from "react";
import { createRoot } from "react-dom/client";

import { EXAMPLES } from "./examples";
import { memoryStorage } from "./storage";

const EXPLORER = explorerPlugin();
const STORAGE = memoryStorage();

/** Returns a function that sends operations to this origin with the key. Only this page's memory holds the key. */
function fetcherWith(key: string): Fetcher {
  const authorization = `Bearer ${key}`;
  return (request) => {
    if (/^\s*subscription\b/m.test(request.query)) {
      const client = createClient({
        url: new URL("/graphql", location.href).href.replace(/^http/, "ws"),
        connectionParams: { authorization },
      });
      const events = client.iterate({ ...request, operationName: request.operationName ?? null });
      return events as unknown as ReturnType<Fetcher>;
    }
    return fetch("/graphql", {
      method: "POST",
      headers: { "content-type": "application/json", accept: "application/graphql-response+json", authorization },
      body: JSON.stringify(request),
    }).then((answer) => answer.json() as Promise<object>) as ReturnType<Fetcher>;
  };
}

function Page() {
  const [typed, setTyped] = useState("");
  const [key, setKey] = useState("");
  const fetcher = useMemo(() => fetcherWith(key), [key]);
  return (
    <div className="page">
      <form
        className="key-bar"
        onSubmit={(event) => {
          event.preventDefault();
          setKey(typed.trim());
          setTyped("");
        }}
      >
        <label htmlFor="key">API key</label>
        <input
          id="key"
          type="password"
          autoComplete="off"
          spellCheck={false}
          placeholder="bck_…  (kept in this page's memory only)"
          value={typed}
          onChange={(event) => setTyped(event.target.value)}
        />
        <button type="submit">Use</button>
        <span role="status">{key ? "Key in use; the schema loads with it." : "Enter a key to load the schema."}</span>
        <a href="/">Console</a>
      </form>
      <GraphiQL
        key={key}
        fetcher={fetcher}
        storage={STORAGE}
        plugins={[HISTORY_PLUGIN, EXPLORER]}
        isHeadersEditorEnabled={false}
        shouldPersistHeaders={false}
        defaultTabs={EXAMPLES}
        defaultEditorToolsVisibility="variables"
      />
    </div>
  );
}

// An editor that is closed while it works rejects a promise with "Canceled". Nobody awaits it, and it is not an error.
addEventListener("unhandledrejection", (event) => {
  if (event.reason instanceof Error && event.reason.name === "Canceled") event.preventDefault();
});

createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <Page />
  </StrictMode>,
);
