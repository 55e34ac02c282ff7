// SPDX-License-Identifier: Apache-2.0
#include <sherd/data/corpus.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>
#include "base/check.h"
#include "base/hash.h"
#include "base/mapped_file.h"
#include "base/status.h"

namespace sherd::data {
namespace {

namespace fs = std::filesystem;

static_assert(
    std::endian::native == std::endian::little,
    "token ids are copied from little-endian files as they are");

constexpr std::int64_t kByteVocabulary = 256;
constexpr std::int64_t kIdBytes = 2;

bool holds_ids(const fs::path& path) { return path.extension() == ".bin"; }

// In byte order of the path below the folder, which no locale changes.
std::vector<std::string> files_below(const fs::path& folder) {
  std::vector<std::string> files;
  try {
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      std::error_code dangling;
      if (entry.is_regular_file(dangling)) {
        files.push_back(entry.path().string());
      }
    }
  } catch (const fs::filesystem_error& error) {
    throw Error(
        str("[data] ", folder.string(), ": expected a readable folder, ",
            error.path1().string(), ": ", error.code().message()),
        ErrorCode::kUnavailable);
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::string> files_of(const std::string& path) {
  std::error_code failure;
  const auto kind = fs::status(path, failure).type();
  SHERD_CHECK_AS(
      kUnavailable, kind != fs::file_type::not_found, "[data] ", path,
      ": expected a file or folder of text, found nothing there");
  if (kind != fs::file_type::directory) {
    return {path};
  }
  auto files = files_below(path);
  SHERD_CHECK(
      !files.empty(), "[data] ", path,
      ": expected at least one file below the folder, found none");
  return files;
}

// Folds a stream of pieces into a hash that does not see where they end.
class StreamHash {
 public:
  void add(std::string_view bytes) {
    bytes_ += bytes.size();
    while (!bytes.empty() && held_ > 0) {
      hold(bytes.front());
      bytes.remove_prefix(1);
    }
    for (; bytes.size() >= sizeof(std::uint64_t);
         bytes.remove_prefix(sizeof(std::uint64_t))) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes.data(), sizeof(word));
      hash_.add(word);
    }
    for (const char c : bytes) {
      hold(c);
    }
  }

  std::uint64_t value() const {
    Hash64 hash = hash_;
    return hash.add(word_).add(bytes_).value();
  }

 private:
  void hold(char c) {
    word_ |= static_cast<std::uint64_t>(static_cast<unsigned char>(c))
        << (8U * held_);
    if (++held_ == sizeof(word_)) {
      hash_.add(word_);
      word_ = 0;
      held_ = 0;
    }
  }

  Hash64 hash_;
  std::uint64_t word_ = 0;  // The bytes of an unfinished word.
  unsigned held_ = 0;
  std::uint64_t bytes_ = 0;
};

std::uint16_t id_at(std::string_view bytes, std::int64_t index) {
  std::uint16_t id = 0;
  std::memcpy(&id, bytes.data() + index * kIdBytes, sizeof(id));
  return id;
}

}  // namespace

struct Corpus::Impl {
  // One file's part of the row.
  struct MappedText {
    MappedFile file;
    std::string path;
    std::string_view bytes;  // The file, up to bytes_max.
    std::int64_t first = 0;  // Index of its first token in the row.
  };

  std::string path;
  std::int64_t token_bytes = 1;
  std::int64_t tokens = 0;
  std::int64_t vocabulary = 0;
  std::uint64_t hash = 0;
  std::vector<MappedText> pieces;  // None of them empty.

  void map(const std::vector<std::string>& files, std::int64_t bytes_max);
  void take_vocabulary(std::int64_t wanted);
  void check_bytes(std::int64_t wanted) const;
  std::int64_t check_ids(std::int64_t wanted) const;
  void take_hash();
};

void Corpus::Impl::map(
    const std::vector<std::string>& files, std::int64_t bytes_max) {
  std::int64_t bytes_left =
      bytes_max > 0 ? bytes_max : std::numeric_limits<std::int64_t>::max();
  for (const auto& name : files) {
    if (bytes_left < token_bytes) {
      return;
    }
    MappedText piece;
    piece.file = MappedFile::open(name).value();
    piece.path = name;
    piece.first = tokens;
    const auto size = static_cast<std::int64_t>(piece.file.bytes().size());
    SHERD_CHECK(
        size % token_bytes == 0, "[data] ", name,
        ": expected 16-bit token ids, an even number of bytes, found ", size);
    const auto used = std::min(size, bytes_left) / token_bytes * token_bytes;
    if (used == 0) {
      continue;
    }
    piece.bytes = piece.file.bytes().substr(0, static_cast<std::size_t>(used));
    tokens += used / token_bytes;
    bytes_left -= used;
    pieces.push_back(std::move(piece));
  }
}

void Corpus::Impl::take_vocabulary(std::int64_t wanted) {
  if (token_bytes == kIdBytes) {
    const auto largest = check_ids(wanted);
    vocabulary = wanted > 0 ? wanted : largest + 1;
    return;
  }
  vocabulary = wanted > 0 ? wanted : kByteVocabulary;
  if (vocabulary < kByteVocabulary) {
    check_bytes(vocabulary);
  }
}

void Corpus::Impl::check_bytes(std::int64_t wanted) const {
  for (const auto& piece : pieces) {
    for (std::size_t i = 0; i < piece.bytes.size(); ++i) {
      const auto id = static_cast<unsigned char>(piece.bytes[i]);
      SHERD_CHECK(
          id < wanted, "[data] ", piece.path,
          ": expected token ids below the vocabulary ", wanted, ", found ",
          static_cast<int>(id), " at byte ", i);
    }
  }
}

std::int64_t Corpus::Impl::check_ids(std::int64_t wanted) const {
  std::int64_t largest = 0;
  for (const auto& piece : pieces) {
    const auto count = static_cast<std::int64_t>(piece.bytes.size()) / kIdBytes;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t id = id_at(piece.bytes, i);
      SHERD_CHECK(
          wanted == 0 || id < wanted, "[data] ", piece.path,
          ": expected token ids below the vocabulary ", wanted, ", found ", id,
          " at token ", i);
      largest = std::max(largest, id);
    }
  }
  return largest;
}

void Corpus::Impl::take_hash() {
  StreamHash stream;
  for (const auto& piece : pieces) {
    stream.add(piece.bytes);
  }
  Hash64 all;
  hash = all.add(static_cast<std::uint64_t>(token_bytes))
             .add(stream.value())
             .value();
}

Corpus::Corpus(const std::string& path, const CorpusOptions& options)
    : impl_(std::make_unique<Impl>()) {
  SHERD_CHECK(
      options.bytes_max >= 0 && options.vocabulary >= 0,
      "[data] expected a byte limit and a vocabulary of at least 0, found ",
      options.bytes_max, " and ", options.vocabulary);
  impl_->path = path;
  const auto files = files_of(path);
  impl_->token_bytes =
      std::all_of(files.begin(), files.end(), holds_ids) ? kIdBytes : 1;
  impl_->map(files, options.bytes_max);
  SHERD_CHECK(
      impl_->tokens > 0, "[data] ", path,
      ": expected text to train on, found 0 tokens in ", files.size(),
      files.size() == 1 ? " file" : " files");
  impl_->take_vocabulary(options.vocabulary);
  impl_->take_hash();
}

Corpus::~Corpus() = default;

const std::string& Corpus::path() const { return impl_->path; }
std::int64_t Corpus::tokens() const { return impl_->tokens; }
std::int64_t Corpus::vocabulary() const { return impl_->vocabulary; }
std::uint64_t Corpus::hash() const { return impl_->hash; }

void Corpus::copy(
    std::int64_t first, std::int64_t count, std::int64_t* to) const {
  SHERD_CHECK(
      first >= 0 && count >= 0 && first <= impl_->tokens - count, "[data] ",
      impl_->path, ": expected a range inside its ", impl_->tokens,
      " tokens, found ", count, " tokens from ", first);
  // The last piece that starts at or before `first`.
  auto piece = std::upper_bound(
      impl_->pieces.begin(), impl_->pieces.end(), first,
      [](std::int64_t at, const Impl::MappedText& p) { return at < p.first; });
  --piece;
  for (; count > 0; ++piece) {
    const auto skip = first - piece->first;
    const auto held =
        static_cast<std::int64_t>(piece->bytes.size()) / impl_->token_bytes;
    const auto taken = std::min(count, held - skip);
    for (std::int64_t i = skip; i < skip + taken; ++i) {
      *to++ = impl_->token_bytes == kIdBytes
          ? id_at(piece->bytes, i)
          : static_cast<unsigned char>(
                piece->bytes[static_cast<std::size_t>(i)]);
    }
    first += taken;
    count -= taken;
  }
}

}  // namespace sherd::data
