// SPDX-License-Identifier: Apache-2.0
#include <sherd/data/tokenizer.h>
#include "base/check.h"
#include "data/tokenizer/utf8.h"

namespace sherd::data {
namespace {

constexpr std::int64_t kBytes = 256;

class ByteTokenizer : public Tokenizer {
 public:
  std::vector<std::int64_t> encode(std::string_view text) override {
    std::vector<std::int64_t> ids;
    ids.reserve(text.size());
    for (const char c : text) {
      ids.push_back(static_cast<unsigned char>(c));
    }
    return ids;
  }

  std::string decode(const std::vector<std::int64_t>& ids) const override {
    std::string text;
    for (const auto id : ids) {
      SHERD_CHECK(
          id >= 0 && id < kBytes, "[data] expected ids in [0, ", kBytes,
          "), found ", id);
      text += static_cast<char>(id);
    }
    return repaired_utf8(text);
  }

  std::int64_t vocab_size() const override { return kBytes; }
  const SpecialTokens& special() const override { return special_; }
  std::uint64_t digest() const override { return bytes_digest(); }

 private:
  const SpecialTokens special_;
};

}  // namespace

std::unique_ptr<Tokenizer> byte_tokenizer() {
  return std::make_unique<ByteTokenizer>();
}

}  // namespace sherd::data
