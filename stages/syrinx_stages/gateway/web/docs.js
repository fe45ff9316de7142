// Shows openapi.json.

function element(name, ...children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}

function resolved(schema, description) {
  return schema.$ref ? description.components.schemas[schema.$ref.split("/").pop()] : schema;
}

function typeOf(schema) {
  if (schema.anyOf) {
    return schema.anyOf.filter((each) => each.type !== "null" && !each.deprecated).map(typeOf).join(" or ");
  }
  if (schema.enum) return schema.enum.join(", ");
  if (schema.$ref && !schema.type) return `object ${schema.$ref.split("/").pop()}`;
  if (schema.type === "array") return `list of ${typeOf(schema.items)}`;
  const low = schema.minimum ?? schema.minLength ?? schema.exclusiveMinimum;
  const high = schema.maximum ?? schema.maxLength;
  if (low === undefined) return schema.type ?? "any";
  const bounds = high === undefined || high > Number.MAX_SAFE_INTEGER ? `from ${low}` : `${low} to ${high}`;
  return `${schema.type}, ${bounds}${schema.type === "string" ? " characters" : ""}`;
}

function fieldTable(schema) {
  // One of several, of which the others are deprecated, is required, too.
  const required = schema.required ?? schema.anyOf?.[0].required ?? [];
  const fields = Object.entries(schema.properties).filter(([, field]) => !field.deprecated);
  return element("table", element("tbody", ...fields.map(([name, field]) => element("tr",
    element("td", element("code", name), required.includes(name) ? " required" : ""),
    element("td", typeOf(field)),
    element("td", field.description ?? "")))));
}

function operation(path, method, found, description) {
  const parts = [element("h2", `${method.toUpperCase()} ${path}`), element("p", found.summary)];
  const content = Object.values(found.requestBody?.content ?? {})[0];
  if (content) parts.push(fieldTable(resolved(content.schema, description)));
  const responses = Object.entries(found.responses).map(([status, response]) =>
    element("tr", element("td", element("code", status)), element("td", response.description)));
  parts.push(element("details", element("summary", "Responses"), element("table", element("tbody", ...responses))));
  return parts;
}

async function load() {
  const response = await fetch("openapi.json");
  if (!response.ok) throw new Error(`openapi.json: the server answered ${response.status}.`);
  const description = await response.json();
  document.getElementById("reference").replaceChildren(
    ...Object.entries(description.paths).flatMap(([path, operations]) =>
      Object.entries(operations).filter(([method]) => method !== "head")
        .flatMap(([method, found]) => operation(path, method, found, description))));
}

document.getElementById("base").textContent = new URL("v1", document.baseURI).href;
load().catch((error) => { document.getElementById("error").textContent = error.message; });
