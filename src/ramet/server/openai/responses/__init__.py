"""OpenAI's Responses API: `/v1/responses`, stateless, or stored when the server was started for it."""
