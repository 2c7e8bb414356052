-- Gives TorchServe's own errors the form that clients expect. The route says whether that is the protocol's.

-- Bytes of an error that are looked at; TorchServe's own are some hundred.
local ERROR_BYTES = 65536
-- What TorchServe's own errors mean; its text is not passed on, since it may quote the request.
local MEANING = {
  ["404"] = "Neither this model nor this version is served.",
  ["500"] = "The worker died, or did not answer in time.",
  ["503"] = "The model's queue is full, or none of its workers is up.",
  ["507"] = "The worker ran out of memory.",
}

function envoy_on_response(handle)
  local headers = handle:headers()
  local status = headers:get(":status")
  -- A handler's answer says how long it took, and is left as it is.
  if tonumber(status) < 400 or headers:get("server-timing") then
    return
  end
  local length = tonumber(headers:get("content-length") or "0")
  if length == 0 or length > ERROR_BYTES then
    return
  end
  local body = handle:body()
  local text = body and body:getBytes(0, body:length()) or ""
  -- TorchServe writes {"code": 500, "type": "...Exception", "message": "..."}, indented.
  local kind = text:match('^%s*{%s*"code":%s*%d+,%s*"type":%s*"(%w+)"')
  if not kind or not kind:find("Exception$") then
    return
  end
  local message = MEANING[status]
  if kind == "ErrorDataDecoderException" then
    status, kind, message = "400", "MalformedForm", "The form cannot be decoded."
  end
  if message then
    -- What was taken of the handle before the body came holds no more.
    headers = handle:headers()
    headers:replace(":status", status)
    local form = handle:metadata():get("form")
    if form == "api" then
      body:setBytes('{"error": {"message": "' .. message .. '", "type": "' ..
        (status < "500" and "invalid_request_error" or "server_error") .. '", "param": null, "code": "' .. kind .. '"}}')
    elseif form == "v2" then
      body:setBytes('{"error": "' .. message .. '"}')
    else
      body:setBytes('{"code": ' .. status .. ', "type": "' .. kind .. '", "message": "' .. message .. '"}')
    end
    headers:replace("content-type", "application/json")
  end
end
