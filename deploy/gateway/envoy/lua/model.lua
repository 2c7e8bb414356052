-- Finds the model of a request to the APIs of embedding servers: the text of "model" in the JSON object that its body is. It
-- stands in metadata, by which the route is chosen anew, and never in a header. Only brackets, braces and quotes are looked
-- at, a piece of the body at a time: a tree of all of it would take ninety times its size. Whether it is JSON, and all that
-- it asks for, is the worker's affair.

local ABOUT = "gateway.api"
-- Bytes of the body that are copied at once, and of those the ones that may hold "model" and its text; names are shorter.
local PIECE, NAME = 65536, 1024
-- Brackets and quotes that are looked at, some 0.2 s of this thread; and members of the object.
local MARKS, MEMBERS = 1000000, 1000

-- A name with any other character is no model's: it becomes one that is unknown.
local function plain(text)
  text = text:gsub("\\u00(%x%x)", function(code) return string.char(tonumber(code, 16)) end):gsub("\\(.)", "%1")
  return text:find("^[%w_./:@+-]+$") and text or "?"
end

local function model_of(body)
  local length, start, depth, members, in_text = body:length(), 0, 0, 0, false
  local piece, at, reach = "", 1, 0
  for _ = 1, MARKS do
    if at > reach then
      start = start + at - 1
      if start >= length then
        return nil
      end
      piece, at = body:getBytes(start, math.min(PIECE, length - start)), 1
      reach = start + #piece < length and #piece - NAME or #piece
    end
    local found = piece:find(in_text and '["\\]' or '["{}%[%]]', at)
    if not found or found > reach then
      at = reach + 1
    else
      local mark = piece:byte(found)
      at = found + 1
      if mark == 92 then -- a backslash: what follows it is text
        at = found + 2
      elseif mark == 34 then
        if not in_text and depth == 1 then
          local name = piece:match('^"model"%s*:%s*"([^"]*)"', found)
          members = members + 1
          if name or members > MEMBERS then
            return name and plain(name)
          end
        end
        in_text = not in_text
      else
        depth = depth + ((mark == 123 or mark == 91) and 1 or -1)
        if depth < 1 or (depth == 1 and mark == 91) then
          return nil
        end
      end
    end
  end
end

function envoy_on_request(handle)
  if handle:headers():get(":method") ~= "POST" then
    return
  end
  local body = handle:body()
  local name = body and model_of(body)
  handle:streamInfo():dynamicMetadata():set(ABOUT, "model", name or "")
  if name then
    handle:clearRouteCache()
  else
    handle:respond({[":status"] = "400"}, "")
  end
end
