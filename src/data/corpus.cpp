// SPDX-License-Identifier: Apache-2.0
#include <sherd/data/corpus.h>

#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>
#include <sherd/data/token_file.h>
#include <sherd/data/tokenizer.h>
#include "base/check.h"
#include "base/files_below.h"
#include "base/hash.h"
#include "base/mapped_file.h"
#include "base/parent_folder.h"
#include "base/status.h"

namespace sherd::data {
namespace {

namespace fs = std::filesystem;

static_assert(
    std::endian::native == std::endian::little,
    "token ids are copied from little-endian files as they are");

constexpr std::int64_t kByteVocabulary = 256;
constexpr std::int64_t kIdBytes = 2;
// A process may have 65530 mappings (vm.max_map_count). Of more files than this, small ones are
// copied.
constexpr std::size_t kMappedFilesMax = 16384;
constexpr std::int64_t kCopiedBytesMax = 65536;

bool holds_ids(const fs::path& path) { return path.extension() == ".bin"; }

// The token file that a path stands for; "" if it does not stand for one.
std::string token_file_of(const std::string& path) {
  const auto inside = fs::path(path) / "train.tokens";
  std::error_code missing;
  if (fs::is_regular_file(inside, missing)) {
    return inside.string();
  }
  return fs::path(path).extension() == ".tokens" ? path : "";
}

// Without train.tokens, these are left by `sherd data prepare` that has not ended, or by a copy.
void expect_no_prepared_part(const fs::path& folder) {
  for (const char* part :
       {"train.tokens.partial", "validation.tokens",
        "validation.tokens.partial", "prepared.json"}) {
    std::error_code missing;
    SHERD_CHECK(
        !fs::exists(folder / part, missing), "[data] ", folder.string(),
        ": expected train.tokens beside ", part,
        ", found none; is `sherd data prepare` still running, or was it "
        "interrupted?");
  }
}

// Checks that the ids of a file are those of the tokenizer beside it.
void check_tokenizer(const std::string& path, std::uint64_t digest) {
  const auto folder = parent_folder(path);
  const auto beside = tokenizer_file(folder);
  if (beside.empty()) {
    return;
  }
  const auto found = tokenizer_digest(folder);
  SHERD_CHECK(
      found == digest, "[data] ", path,
      ": expected the tokenizer that made it (", "digest ", digest, ") in ",
      beside, ", found another one (digest ", found, ")");
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
  expect_no_prepared_part(path);
  std::vector<std::string> files;
  for (auto& file : files_below(path, HiddenFiles::kIncluded).value()) {
    SHERD_CHECK(
        file.problem.empty(), "[data] ", file.path,
        ": expected a file or folder, found ", file.problem);
    files.push_back(std::move(file.path));
  }
  SHERD_CHECK(
      !files.empty(), "[data] ", path,
      ": expected at least one file below the folder, found none");
  return files;
}

// Hashes a stream of pieces; the hash does not depend on where they end.
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

// Writes ids stored as `Word`s to `to`, and returns the largest.
template <typename Word>
std::int64_t copy_words(
    const char* from, std::int64_t count, std::int64_t* to) {
  std::int64_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    Word word = 0;
    std::memcpy(
        &word, from + i * static_cast<std::int64_t>(sizeof(Word)),
        sizeof(Word));
    to[i] = static_cast<std::int64_t>(word);
    largest = std::max(largest, to[i]);
  }
  return largest;
}

std::int64_t copy_ids(
    const char* from,
    std::int64_t id_bytes,
    std::int64_t count,
    std::int64_t* to) {
  switch (id_bytes) {
    case 1:
      return copy_words<unsigned char>(from, count, to);
    case 2:
      return copy_words<std::uint16_t>(from, count, to);
    default:
      return copy_words<std::uint32_t>(from, count, to);
  }
}

}  // namespace

struct Corpus::Impl {
  // The part of the text that comes from one file.
  struct MappedText {
    MappedFile file;
    std::vector<char> copy;  // Instead of `file`.
    std::string path;
    std::string_view bytes;  // The file, up to bytes_max.
    std::int64_t first = 0;  // The index of its first token in the text.
  };

  void open_text(const CorpusOptions& options) {
    const auto files = files_of(path);
    token_bytes =
        std::all_of(files.begin(), files.end(), holds_ids) ? kIdBytes : 1;
    tokenizer_digest = token_bytes == 1 ? bytes_digest() : 0;
    map(files, options.bytes_max);
    SHERD_CHECK(
        tokens > 0, "[data] ", path,
        ": expected text to train on, found 0 tokens in ", files.size(),
        files.size() == 1 ? " file" : " files");
    take_vocabulary(options.vocabulary);
    take_hash();
  }

  void open_token_file(const std::string& name, const CorpusOptions& options) {
    token_file = std::make_unique<TokenFile>(name);
    check_tokenizer(name, token_file->tokenizer_digest());
    tokenizer_digest = token_file->tokenizer_digest();
    token_bytes = token_file->id_bytes();
    tokens = token_file->tokens();
    if (options.bytes_max > 0) {
      tokens = std::min(tokens, options.bytes_max / token_bytes);
    }
    SHERD_CHECK(
        tokens > 0, "[data] ", name, ": expected tokens to train on, found 0");
    vocabulary = std::max(options.vocabulary, token_file->vocabulary());
    SHERD_CHECK(
        options.vocabulary == 0 || options.vocabulary == vocabulary, "[data] ",
        name, ": expected a vocabulary of at least ", vocabulary,
        ", that of its tokenizer, found ", options.vocabulary);
    MappedText piece;
    piece.path = name;
    piece.bytes = {
        token_file->ids(), static_cast<std::size_t>(tokens * token_bytes)};
    pieces.push_back(std::move(piece));
    Hash64 all;
    hash = all.add(static_cast<std::uint64_t>(token_bytes))
               .add(static_cast<std::uint64_t>(tokens))
               .add(token_file->ids_digest())
               .add(tokenizer_digest)
               .value();
  }

  // Calls `each` with the bytes and the number of tokens of every piece in the range.
  template <typename Function>
  void for_range(
      std::int64_t first, std::int64_t count, const Function& each) const {
    SHERD_CHECK(
        first >= 0 && count >= 0 && first <= tokens - count, "[data] ", path,
        ": expected a range inside its ", tokens, " tokens, found ", count,
        " tokens from ", first);
    // The last piece that starts at or before `first`.
    auto piece = std::upper_bound(
        pieces.begin(), pieces.end(), first,
        [](std::int64_t at, const MappedText& p) { return at < p.first; });
    --piece;
    for (; count > 0; ++piece) {
      const auto skip = first - piece->first;
      const auto held =
          static_cast<std::int64_t>(piece->bytes.size()) / token_bytes;
      const auto taken = std::min(count, held - skip);
      each(piece->bytes.data() + skip * token_bytes, taken);
      first += taken;
      count -= taken;
    }
  }

  void map(const std::vector<std::string>& files, std::int64_t bytes_max) {
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
      piece.bytes =
          piece.file.bytes().substr(0, static_cast<std::size_t>(used));
      if (files.size() > kMappedFilesMax && used <= kCopiedBytesMax) {
        piece.copy.assign(piece.bytes.begin(), piece.bytes.end());
        piece.bytes = {piece.copy.data(), piece.copy.size()};
        piece.file = {};
      }
      tokens += used / token_bytes;
      bytes_left -= used;
      pieces.push_back(std::move(piece));
    }
  }

  void take_vocabulary(std::int64_t wanted) {
    if (token_bytes == kIdBytes) {
      const auto largest = check_ids<std::uint16_t>(wanted);
      vocabulary = wanted > 0 ? wanted : largest + 1;
      return;
    }
    vocabulary = wanted > 0 ? wanted : kByteVocabulary;
    if (vocabulary < kByteVocabulary) {
      check_ids<unsigned char>(vocabulary);
    }
  }

  // The largest id. Throws Error for one that is not below `wanted`, unless that is 0.
  template <typename Word>
  std::int64_t check_ids(std::int64_t wanted) const {
    std::int64_t largest = 0;
    for (const auto& piece : pieces) {
      const std::size_t count = piece.bytes.size() / sizeof(Word);
      for (std::size_t i = 0; i < count; ++i) {
        Word word = 0;
        std::memcpy(&word, piece.bytes.data() + i * sizeof(Word), sizeof(Word));
        const auto id = static_cast<std::int64_t>(word);
        SHERD_CHECK(
            wanted == 0 || id < wanted, "[data] ", piece.path,
            ": expected token ids below the vocabulary ", wanted, ", found ",
            id, " at token ", i);
        largest = std::max(largest, id);
      }
    }
    return largest;
  }

  void take_hash() {
    StreamHash stream;
    for (const auto& piece : pieces) {
      stream.add(piece.bytes);
    }
    Hash64 all;
    hash = all.add(static_cast<std::uint64_t>(token_bytes))
               .add(stream.value())
               .value();
  }

  std::string path;
  std::int64_t token_bytes = 1;
  std::int64_t tokens = 0;
  std::int64_t vocabulary = 0;
  std::uint64_t hash = 0;
  std::uint64_t tokenizer_digest = 0;
  std::unique_ptr<TokenFile> token_file;
  std::vector<MappedText> pieces;  // None of them empty.
};

Corpus::Corpus(const std::string& path, const CorpusOptions& options)
    : impl_(std::make_unique<Impl>()) {
  SHERD_CHECK(
      options.bytes_max >= 0 && options.vocabulary >= 0,
      "[data] expected a byte limit and a vocabulary of at least 0, found ",
      options.bytes_max, " and ", options.vocabulary);
  impl_->path = path;
  const auto token_file = token_file_of(path);
  if (token_file.empty()) {
    impl_->open_text(options);
  } else {
    impl_->open_token_file(token_file, options);
  }
}

Corpus::~Corpus() = default;

const std::string& Corpus::path() const { return impl_->path; }
std::int64_t Corpus::tokens() const { return impl_->tokens; }
std::int64_t Corpus::vocabulary() const { return impl_->vocabulary; }
std::uint64_t Corpus::hash() const { return impl_->hash; }

std::uint64_t Corpus::tokenizer_digest() const {
  return impl_->tokenizer_digest;
}

void Corpus::copy(
    std::int64_t first, std::int64_t count, std::int64_t* to) const {
  impl_->for_range(first, count, [&](const char* from, std::int64_t taken) {
    const auto largest = copy_ids(from, impl_->token_bytes, taken, to);
    // The ids of other files were checked when they were opened.
    SHERD_CHECK(
        impl_->token_file == nullptr || largest < impl_->vocabulary, "[data] ",
        impl_->path, ": expected ids below the vocabulary ", impl_->vocabulary,
        ", found ", largest, ": the file is damaged");
    to += taken;
  });
}

void Corpus::read_ahead(std::int64_t first, std::int64_t count) const {
  static const auto kPage =
      static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  impl_->for_range(first, count, [&](const char* from, std::int64_t taken) {
    const auto begin = reinterpret_cast<std::uintptr_t>(from);
    const auto end =
        begin + static_cast<std::uintptr_t>(taken * impl_->token_bytes);
    const auto page = begin / kPage * kPage;
    // A hint; if the system cannot use it, nothing is lost.
    ::madvise(reinterpret_cast<void*>(page), end - page, MADV_WILLNEED);
  });
}

}  // namespace sherd::data
