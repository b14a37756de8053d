"""What goes over the wire, one file a noun; the descriptions end up in the OpenAPI document."""
