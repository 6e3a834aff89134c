import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

// Builds two pages: the console at "/" and GraphiQL, in a chunk of its own, at "/graphql". The assets of both are below
// "/assets".
export default defineConfig({
  base: "/",
  plugins: [react()],
  worker: { format: "es" },
  build: {
    target: "es2022",
    chunkSizeWarningLimit: 5000,
    modulePreload: { polyfill: false },
    rollupOptions: {
      // Directives of React's compiler have no effect once it has run, so a warning about them is not worth reporting.
      onwarn: (warning, warn) => warning.code !== "MODULE_LEVEL_DIRECTIVE" && warn(warning),
      input: { index: "index.html", graphiql: "graphiql.html" },
    },
  },
});
