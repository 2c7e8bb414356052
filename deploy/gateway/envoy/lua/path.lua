-- Normalises a path, so that routes can be exact: no slash at its end, which TorchServe ignores, and all characters
-- percent-encoded except those that RFC 3986 calls unreserved. Envoy has resolved dots and encoded slashes before.

function envoy_on_request(handle)
  local headers = handle:headers()
  local path, query = headers:get(":path"):match("^([^?]*)(.*)$")
  path = path:gsub("%%(%x%x)", function(code) return string.char(tonumber(code, 16)) end)
  path = path:gsub("[^%w_.~/-]", function(byte) return ("%%%02X"):format(byte:byte()) end):gsub("(.)/+$", "%1")
  headers:replace(":path", path .. query)
  handle:clearRouteCache()
end
