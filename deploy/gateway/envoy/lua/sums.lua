-- In front of the scripts that inflate bodies. Envoy's decompressor forwards the valid part of a damaged or cut body and
-- compares no sum, so the sum at the end of gzip (CRC-32) and zlib (Adler-32) is kept before it, and compared behind it.

-- Ten bytes: magic, deflate, no flags, no time, unknown system. Envoy inflates only gzip: zlib gets this header in place of
-- its own, and its end is ignored.
local GZIP_HEAD, ZLIB_HEAD_BYTES = "\31\139\8\0\0\0\0\0\0\255", 2
local END_BYTES = 8
local SUM = "gateway.sum"

local function keep_sum(handle, last, is_zlib)
  if #last < END_BYTES then
    return
  end
  local a, b, c, d, e, f, g, h = last:byte(1, END_BYTES)
  local kept = handle:streamInfo():dynamicMetadata()
  kept:set(SUM, "is_zlib", is_zlib)
  if is_zlib then
    kept:set(SUM, "value", h + g * 256 + f * 65536 + e * 16777216)
  else
    kept:set(SUM, "value", a + b * 256 + c * 65536 + d * 16777216)
    kept:set(SUM, "length", e + f * 256 + g * 65536 + h * 16777216)
  end
end

-- Bytes that are read at once: Adler-32's sums stay exact.
local STEP = 65536
-- CRC[0] is the table of one byte; CRC[n] that of a byte that n others follow, so that a step takes four.
local CRC = {[0] = {}, {}, {}, {}}
for byte = 0, 255 do
  local value = byte
  for _ = 1, 8 do
    value = bit.bxor(bit.rshift(value, 1), bit.band(value, 1) * 0xEDB88320)
  end
  CRC[0][byte] = value
end
for others = 1, 3 do
  for byte = 0, 255 do
    local value = CRC[others - 1][byte]
    CRC[others][byte] = bit.bxor(bit.rshift(value, 8), CRC[0][bit.band(value, 255)])
  end
end

local function find_crc(body, length)
  local bxor, band, rshift = bit.bxor, bit.band, bit.rshift
  local one, two, three, four = CRC[0], CRC[1], CRC[2], CRC[3]
  local sum = -1
  for at = 0, length - 1, STEP do
    local bytes = body:getBytes(at, math.min(STEP, length - at))
    local rest = #bytes % 4
    for place = 1, #bytes - rest, 4 do
      local a, b, c, d = bytes:byte(place, place + 3)
      sum = bxor(four[band(bxor(sum, a), 255)], three[band(bxor(rshift(sum, 8), b), 255)],
        two[band(bxor(rshift(sum, 16), c), 255)], one[bxor(rshift(sum, 24), d)])
    end
    for place = #bytes - rest + 1, #bytes do
      sum = bxor(rshift(sum, 8), one[band(bxor(sum, bytes:byte(place)), 255)])
    end
  end
  return bit.bnot(sum) % 4294967296
end

local function find_adler(body, length)
  local low, high = 1, 0
  for at = 0, length - 1, STEP do
    local bytes = body:getBytes(at, math.min(STEP, length - at))
    for place = 1, #bytes do
      low = low + bytes:byte(place)
      high = high + low
    end
    low, high = low % 65521, high % 65521
  end
  return high * 65536 + low
end

-- Return whether an inflated body has its sum, and its length, which gzip stores modulo 2^32: no body is as long.
local function is_whole(handle, body)
  local kept, length = handle:streamInfo():dynamicMetadata():get(SUM), body:length()
  return kept ~= nil and (kept["length"] or length) == length
    and kept["value"] == (kept["is_zlib"] and find_adler or find_crc)(body, length)
end
