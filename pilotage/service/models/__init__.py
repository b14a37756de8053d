"""Bodies of requests and answers, one module per noun; the descriptions appear in the OpenAPI document."""
