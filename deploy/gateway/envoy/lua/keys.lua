-- Requires an API key, and adds a header with its client. A header of this script defines CLIENTS: key -> client,
-- BUDGETS: client -> tokens_per_minute, and AUTHORITIES, which sign the certificates of clients: a connection that another one has admitted must be made again.

-- Tokens of responses that no request has paid for yet, by client. The buckets of tokens_per_minute (listener.yaml) are
-- one for all threads; this debt is each thread's own, and its next request of the client pays it.
local ABOUT, OWED = "gateway.tokens", {}

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
  local most = BUDGETS[client]
  if most then
    local owed = math.min(OWED[client] or 0, most)
    OWED[client] = (OWED[client] or 0) - owed
    local noted = handle:streamInfo():dynamicMetadata()
    noted:set(ABOUT, "client", client)
    noted:set(ABOUT, "owed", owed)
    -- Without a debt, a request pays one of its own tokens: an empty bucket rejects it.
    noted:set(ABOUT, "paid", math.max(1, owed))
  end
end

if next(BUDGETS) then
  function envoy_on_response(handle)
    local noted = handle:streamInfo():dynamicMetadata():get(ABOUT)
    if not noted then
      return
    end
    local headers, client, owed, paid = handle:headers(), noted["client"], noted["owed"], noted["paid"]
    local used = math.max(0, tonumber(headers:get("$TOKENS_HEADER") or "0") - (paid - owed))
    if headers:get("$BUDGET_HEADER") then
      used = owed
      headers:replace("retry-after", tostring(math.ceil(60 * paid / BUDGETS[client])))
    end
    OWED[client] = (OWED[client] or 0) + used
  end
end
