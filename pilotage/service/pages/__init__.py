"""Web pages, one module per noun; `navigation` lists their routers."""
