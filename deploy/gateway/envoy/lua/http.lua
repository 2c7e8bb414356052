-- HTTP: bounds forms on the way in; on the way out gives TorchServe's own errors the form that clients expect, and takes
-- Server-Timing apart for the access log. FORM_BYTES is set in front of this file.

local ABOUT = "gateway"
-- Bytes of an error that are looked at; TorchServe's own are some hundred.
local ERROR_BYTES = 65536
-- What TorchServe's own errors mean; its text is not passed on, since it may quote the request.
local MEANING = {
  ["404"] = "Neither this model nor this version is served.",
  ["500"] = "The worker died, or did not answer in time.",
  ["503"] = "The model's queue is full, or none of its workers is up.",
  ["507"] = "The worker ran out of memory.",
}

local function about_of(handle)
  return handle:streamInfo():dynamicMetadata():get(ABOUT) or {}
end

function envoy_on_request(handle)
  local headers = handle:headers()
  local about = handle:streamInfo():dynamicMetadata()
  local client = headers:get("x-client")
  if client then
    about:set(ABOUT, "client", client)
  end
  if headers:get(":path"):find("^/v2/") then
    about:set(ABOUT, "is_v2", true)
  end
  local kind = headers:get("content-type")
  if kind and kind:lower():find("application/x-www-form-urlencoded", 1, true) then
    local body = handle:body()
    if body and body:length() > FORM_BYTES then
      handle:respond({[":status"] = "413"}, "form")
      return
    end
  end
  local noted = about_of(handle)
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

local function note_timing(handle, timing)
  local about = handle:streamInfo():dynamicMetadata()
  for name, value in timing:gmatch("(%a+);dur=([%d.]+)") do
    about:set(ABOUT, name .. "_ms", tonumber(value))
  end
  local batch = timing:match('batch;desc="(%d+)"')
  if batch then
    about:set(ABOUT, "batch_size", tonumber(batch))
  end
end

function envoy_on_response(handle)
  local headers = handle:headers()
  local timing = headers:get("server-timing")
  if timing then
    note_timing(handle, timing)
  end
  local status = headers:get(":status")
  -- A handler's answer says how long it took, and is left as it is.
  if timing or tonumber(status) < 400 then
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
    if about_of(handle)["is_v2"] then
      body:setBytes('{"error": "' .. message .. '"}')
    else
      body:setBytes('{"code": ' .. status .. ', "type": "' .. kind .. '", "message": "' .. message .. '"}')
    end
    headers:replace("content-type", "application/json")
  end
end
