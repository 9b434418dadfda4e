// The documentation of the API, drawn from its own OpenAPI description: nothing comes from another host.

const byId = (id) => document.getElementById(id);

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

const typeOf = (schema, shapes) => {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  const choices = schema.anyOf ?? schema.allOf;
  if (choices) return choices.map((each) => typeOf(each, shapes)).join(" | ");
  if (schema.enum) return schema.enum.map((word) => JSON.stringify(word)).join(" | ");
  if (schema.type === "array") return `${typeOf(schema.items, shapes)}[]`;
  return schema.format ? `${schema.type} (${schema.format})` : schema.type ?? "any";
};

const schemaOf = (part) => Object.values(part?.content ?? {})[0]?.schema;

function fields(schema, shapes) {
  const shape = schema?.$ref ? shapes[schema.$ref.split("/").pop()] : schema;
  const required = new Set(shape?.required ?? []);
  return Object.entries(shape?.properties ?? {}).map(([name, property]) => [
    required.has(name) ? `${name} *` : name, typeOf(property, shapes), property.description ?? "",
  ]);
}

function table(title, rows) {
  if (!rows.length) return [];
  const made = element("table");
  for (const row of rows) {
    const line = element("tr");
    line.append(...row.map((text, place) => element("td", text, place < 2 ? "mono" : "quiet")));
    made.append(line);
  }
  return [element("h4", title), made];
}

function route(path, verb, operation, shapes) {
  const made = element("details");
  const summary = element("summary");
  summary.append(element("span", verb.toUpperCase(), "verb mono"), element("span", path, "mono"));
  made.append(summary, element("p", operation.description ?? operation.summary));
  const parameters = (operation.parameters ?? []).map((each) => [
    `${each.name} (${each.in})`, typeOf(each.schema, shapes), each.description ?? "",
  ]);
  const body = operation.requestBody?.content?.["application/json"]?.schema;
  const asked = body?.anyOf?.find((each) => each.$ref) ?? body;
  const answers = Object.entries(operation.responses).map(([status, answer]) => [
    status, typeOf(schemaOf(answer), shapes), answer.description,
  ]);
  const success = Object.entries(operation.responses).find(([status]) => status.startsWith("2"))?.[1];
  made.append(
    ...table("Parameters", parameters),
    ...table("Body", fields(asked, shapes)),
    ...table("Answers", answers),
    ...table("Answer in full", fields(schemaOf(success), shapes)),
  );
  return made;
}

function draw(api) {
  byId("version").textContent = api.info.version;
  byId("description").textContent = api.info.description;
  const groups = new Map();
  for (const [path, verbs] of Object.entries(api.paths)) {
    for (const [verb, operation] of Object.entries(verbs)) {
      const group = operation.tags?.[0] ?? "other";
      if (!groups.has(group)) groups.set(group, []);
      groups.get(group).push(route(path, verb, operation, api.components.schemas));
    }
  }
  for (const [group, routes] of groups) {
    const card = element("section", undefined, "card");
    card.append(...routes);
    byId("routes").append(element("h2", group), card);
  }
}

const response = await fetch("/openapi.json");
draw(await response.json());
