// Relative, so that it works behind a proxy that adds a prefix. No validator: nothing leaves this server.
SwaggerUIBundle({
  url: new URL("openapi.json", document.baseURI).href,
  dom_id: "#description",
  deepLinking: true,
  validatorUrl: null,
  defaultModelsExpandDepth: 1,
});
