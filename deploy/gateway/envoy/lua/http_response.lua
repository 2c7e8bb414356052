-- Converts TorchServe's own errors to this project's format; the route selects the protocol's format.

-- Bytes of an error that are read; TorchServe's errors have a few hundred, or none if a body is too large.
local ERROR_BYTES = 65536
-- Status -> message for TorchServe's own error; its text is not forwarded, since it may quote the request.
local MEANING = {
  ["404"] = "The node does not serve this model at the moment.",
  ["413"] = "The body is larger than the node's max_request_size.",
  ["500"] = "The worker died, or did not answer in time.",
  ["503"] = "The model's queue is full, or none of its workers is up.",
  ["507"] = "The worker ran out of memory.",
}

function envoy_on_response(handle)
  local headers = handle:headers()
  local status, length = headers:get(":status"), tonumber(headers:get("content-length") or "0")
  -- A handler's response has Server-Timing, and stays unchanged.
  if headers:get("server-timing") or length > ERROR_BYTES or (length == 0 and status ~= "413") then
    return
  end
  -- With true an empty body can be replaced, too.
  local body = handle:body(true)
  local text = body:getBytes(0, body:length())
  -- TorchServe writes {"code": 500, "type": "...Exception", "message": "..."}, indented.
  local kind = length == 0 and "BodyTooLarge" or text:match('^%s*{%s*"code":%s*%d+,%s*"type":%s*"(%w+Exception)"')
  local message = MEANING[status]
  if kind == "ErrorDataDecoderException" then
    status, kind, message = "400", "MalformedForm", "The form cannot be decoded."
  end
  if kind and message then
    -- Handle objects from before the body's arrival are no longer valid.
    headers = handle:headers()
    if status == "404" then
      -- The gateway knows the model: the node has restarted and not restored it yet, or it was just removed.
      status = "503"
      headers:replace("retry-after", "1")
    end
    headers:replace(":status", status)
    local form = handle:metadata():get("form")
    if form == "api" then
      body:setBytes('{"error": {"message": "' .. message .. '", "type": "' ..
        (status < "500" and "invalid_request_error" or "server_error") .. '", "param": null, "code": "' .. kind .. '"}}')
    elseif form == "cohere" then
      body:setBytes('{"message": "' .. message .. '"}')
    elseif form == "v2" then
      body:setBytes('{"error": "' .. message .. '"}')
    else
      body:setBytes('{"code": ' .. status .. ', "type": "' .. kind .. '", "message": "' .. message .. '"}')
    end
    headers:replace("content-type", "application/json")
  end
end
