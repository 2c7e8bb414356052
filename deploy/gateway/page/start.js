// One document for both pages: the models at /, the API at /docs.
await import(location.pathname === "/docs" ? "./docs.js" : "./page.js");
