-- Requires an API key, and adds a header with its client. A header of this script defines CLIENTS: key -> client, and
-- AUTHORITIES, which sign the certificates of clients: a connection that another one has admitted must be made again.

function envoy_on_request(handle)
  local headers = handle:headers()
  if AUTHORITIES and not AUTHORITIES[headers:get("x-authority") or ""] then
    handle:respond({[":status"] = "503"}, "")
    return
  end
  if not CLIENTS then
    return
  end
  local scheme, key = (headers:get("authorization") or ""):match("^(%a+) +(%S+)$")
  local client = scheme and scheme:lower() == "bearer" and CLIENTS[key]
  if not client then
    handle:respond({[":status"] = "401"}, "")
    return
  end
  headers:remove("authorization")
  headers:replace("$CLIENT_HEADER", client)
end
