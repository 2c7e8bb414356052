-- Of forms and of bodies that were inflated alone (listeners.py asks for nothing else): forms are bounded, and a body that
-- is not what its head or its end says is refused. FORM_BYTES is set in front of this file.

local ABOUT = "gateway"

function envoy_on_request(handle)
  handle:headers():remove("x-inflated")
  local kind = handle:headers():get("content-type")
  if kind and kind:lower():find("application/x-www-form-urlencoded", 1, true) then
    local body = handle:body()
    if body and body:length() > FORM_BYTES then
      handle:respond({[":status"] = "413"}, "form")
      return
    end
  end
  local noted = handle:streamInfo():dynamicMetadata():get(ABOUT) or {}
  if noted["is_inflated"] then
    local body = handle:body()
    local length = body and body:length() or 0
    -- Modulo 2^32 in gzip's own count; no body is as long.
    if length == 0 or (noted["inflated_bytes"] or length) ~= length then
      handle:respond({[":status"] = "400"}, "")
      return
    end
    handle:headers():replace("content-length", tostring(length))
  end
end
