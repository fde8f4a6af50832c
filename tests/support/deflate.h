#pragma once
// Data compressed by zlib, for tests of readers; only in builds with zlib.

#ifdef MIXTAPE_ZLIB
#include <zlib.h>

#include <string>
#include <string_view>

namespace mixtape::test {

// `window_bits` chooses the format, as in zlib.
inline std::string compressed(std::string_view text, int window_bits) {
  z_stream z = {};
  deflateInit2(&z, 9, Z_DEFLATED, window_bits, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&z, text.size()) + 64, '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  z.avail_in = uInt(text.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = uInt(out.size());
  deflate(&z, Z_FINISH);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}
inline std::string gzip(std::string_view text) { return compressed(text, 15 + 16); }
inline std::string deflated(std::string_view text) { return compressed(text, -15); }  // as in zip

}  // namespace mixtape::test
#endif
