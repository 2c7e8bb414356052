-- Converts TorchServe's own errors to this project's format; the route selects the protocol's format. A header of this
-- script defines NODES: status -> meaning.

-- Bytes of an error that are read; TorchServe's errors have a few hundred, or none if a body is too large.
local ERROR_BYTES = 65536

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
  local meaning = NODES[status]
  if kind == "ErrorDataDecoderException" then
    kind, meaning = "MalformedForm", {status = "400", openai = NODES["400"].openai, message = "The form cannot be decoded."}
  end
  if kind and meaning then
    -- Handle objects from before the body's arrival are no longer valid.
    headers = handle:headers()
    if status ~= meaning.status and meaning.status == "503" then
      headers:replace("retry-after", "1")
    end
    headers:replace(":status", meaning.status)
    local message = meaning.message
    local form = handle:metadata():get("form")
    if form == "api" then
      body:setBytes('{"error": {"message": "' .. message .. '", "type": "' ..
        meaning.openai .. '", "param": null, "code": "' .. kind .. '"}}')
    elseif form == "cohere" then
      body:setBytes('{"message": "' .. message .. '"}')
    elseif form == "v2" then
      body:setBytes('{"error": "' .. message .. '"}')
    else
      body:setBytes('{"code": ' .. meaning.status .. ', "type": "' .. kind .. '", "message": "' .. message .. '"}')
    end
    headers:replace("content-type", "application/json")
  end
end
