// SPDX-License-Identifier: Apache-2.0
#include <sherd/data/token_file.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>
#include "base/check.h"
#include "base/descriptor.h"
#include "base/digest.h"
#include "base/mapped_file.h"
#include "base/replace_file.h"
#include "base/status.h"

namespace sherd::data {
namespace {

static_assert(
    std::endian::native == std::endian::little,
    "headers and ids are copied to and from little-endian files as they are");

constexpr std::array<char, 8> kMagic = {'S', 'H', 'E', 'R', 'D', 'T', 'O', 'K'};
constexpr std::uint32_t kVersion = 1;
constexpr std::int64_t kShortVocabularyMax = 1 << 16;
constexpr std::int64_t kVocabularyMax = std::int64_t{1} << 31;
constexpr std::uint64_t kOffsetBytes = sizeof(std::uint64_t);

// The first bytes of the file.
struct Header {
  std::array<char, 8> magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t id_bytes = 0;
  std::uint64_t tokens = 0;
  std::uint64_t documents = 0;
  std::uint64_t vocabulary = 0;
  std::uint64_t tokenizer_digest = 0;
  std::uint64_t ids_digest = 0;
  std::uint64_t header_digest = 0;  // Of all bytes before it.
};
static_assert(sizeof(Header) == 64);

std::uint64_t digest_of_header(const Header& header) {
  return digest_of(&header, offsetof(Header, header_digest));
}

// Offsets start at a multiple of their size, so ids are padded.
std::uint64_t padding(std::uint64_t ids_bytes) {
  return (kOffsetBytes - ids_bytes % kOffsetBytes) % kOffsetBytes;
}

}  // namespace

struct TokenFileWriter::Impl {
  [[noreturn]] void fail(const char* action) const {
    throw Error(
        str("[data] ", path, ": expected to write it, ", action,
            " failed: ", std::strerror(errno)),
        ErrorCode::kUnavailable);
  }
  void write(const void* bytes, std::size_t count) const {
    if (count > 0 && std::fwrite(bytes, 1, count, file) != count) {
      fail("write");
    }
  }
  std::string unfinished() const { return path + ".partial"; }

  // Opens the unfinished file, which this writer keeps locked as long as it is open. A killed
  // writer leaves a file without a lock.
  void open() {
    Descriptor opened(
        ::open(unfinished().c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
    if (!opened.open()) {
      fail("open");
    }
    // Some file systems have no locks. On others the file may have been finished or removed between
    // open and lock; then it has lost its name.
    const bool locked =
        ::flock(opened.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
    struct stat mine = {};
    struct stat named = {};
    SHERD_CHECK(
        locked && ::fstat(opened.get(), &mine) == 0 &&
            ::stat(unfinished().c_str(), &named) == 0 &&
            mine.st_dev == named.st_dev && mine.st_ino == named.st_ino,
        "[data] ", path,
        ": expected one writer at a time, found another one at work");
    if (::ftruncate(opened.get(), 0) != 0) {
      fail("truncate");
    }
    file = ::fdopen(opened.get(), "wb");
    if (file == nullptr) {
      fail("open");
    }
    opened.release();
  }

  std::string path;
  Header header;
  std::FILE* file = nullptr;
  std::vector<std::uint64_t> offsets = {0};
  std::vector<char> buffer;  // A document's ids as words.
};

TokenFileWriter::TokenFileWriter(
    const std::string& path, const TokenFileOptions& options)
    : impl_(std::make_unique<Impl>()) {
  SHERD_CHECK(
      options.vocabulary >= 1 && options.vocabulary <= kVocabularyMax,
      "[data] ", path, ": expected a vocabulary in [1, ", kVocabularyMax,
      "], found ", options.vocabulary);
  impl_->path = path;
  impl_->header.id_bytes = options.vocabulary <= kShortVocabularyMax ? 2 : 4;
  impl_->header.vocabulary = static_cast<std::uint64_t>(options.vocabulary);
  impl_->header.tokenizer_digest = options.tokenizer_digest;
  impl_->open();
  impl_->write(&impl_->header, sizeof(Header));
}

TokenFileWriter::~TokenFileWriter() {
  if (impl_->file != nullptr) {
    // First, because with fclose() the file may be another writer's.
    std::remove(impl_->unfinished().c_str());
    std::fclose(impl_->file);
  }
}

void TokenFileWriter::add(const std::vector<std::int64_t>& ids) {
  SHERD_CHECK_AS(
      kFailedPrecondition, impl_->file != nullptr, "[data] ", impl_->path,
      ": expected no document after finish(), found one");
  const auto id_bytes = impl_->header.id_bytes;
  impl_->buffer.resize(ids.size() * id_bytes);
  char* to = impl_->buffer.data();
  for (const auto id : ids) {
    SHERD_CHECK(
        id >= 0 && static_cast<std::uint64_t>(id) < impl_->header.vocabulary,
        "[data] ", impl_->path, ": expected ids below the vocabulary ",
        impl_->header.vocabulary, ", found ", id);
    std::memcpy(to, &id, id_bytes);  // The low bytes come first.
    to += id_bytes;
  }
  impl_->write(impl_->buffer.data(), impl_->buffer.size());
  impl_->header.tokens += ids.size();
  impl_->header.documents += 1;
  impl_->offsets.push_back(impl_->header.tokens);
}

void TokenFileWriter::finish() {
  SHERD_CHECK_AS(
      kFailedPrecondition, impl_->file != nullptr, "[data] ", impl_->path,
      ": expected finish() once, found a second call");
  auto& header = impl_->header;
  const auto ids_bytes = header.tokens * header.id_bytes;
  constexpr std::array<char, kOffsetBytes> kZeros{};
  impl_->write(kZeros.data(), padding(ids_bytes));
  impl_->write(impl_->offsets.data(), impl_->offsets.size() * kOffsetBytes);
  if (std::fflush(impl_->file) != 0) {
    impl_->fail("write");
  }
  header.ids_digest = digest_of(MappedFile::open(impl_->unfinished())
                                    .value()
                                    .bytes()
                                    .substr(sizeof(Header), ids_bytes));
  header.header_digest = digest_of_header(header);
  std::rewind(impl_->file);
  impl_->write(&header, sizeof(Header));
  if (std::fflush(impl_->file) != 0) {
    impl_->fail("write");
  }
  publish_file(impl_->unfinished(), impl_->path).throw_if_failed();
  std::fclose(impl_->file);
  impl_->file = nullptr;
}

std::int64_t TokenFileWriter::documents() const {
  return static_cast<std::int64_t>(impl_->header.documents);
}
std::int64_t TokenFileWriter::tokens() const {
  return static_cast<std::int64_t>(impl_->header.tokens);
}

struct TokenFile::Impl {
  void expect(bool holds, const auto&... what) const {
    SHERD_CHECK(holds, "[data] ", path, ": expected ", what...);
  }

  void read_header() {
    const auto bytes = file.bytes();
    expect(
        bytes.size() >= sizeof(Header), "a token file, at least ",
        sizeof(Header), " bytes, found ", bytes.size());
    std::memcpy(&header, bytes.data(), sizeof(Header));
    expect(
        header.magic == kMagic,
        "a token file, which starts with SHERDTOK, found something else");
    expect(
        header.version == kVersion, "version ", kVersion, ", found ",
        header.version);
    expect(
        header.header_digest == digest_of_header(header),
        "a header as it was written, found a damaged one");
    check_counts();
    const auto ids_bytes = header.tokens * header.id_bytes;
    const auto size = sizeof(Header) + ids_bytes + padding(ids_bytes) +
        (header.documents + 1) * kOffsetBytes;
    expect(bytes.size() == size, size, " bytes, found ", bytes.size());
  }

  // Checked even though the header has a digest, because its author could write that, too.
  // Afterwards sizes cannot overflow.
  void check_counts() const {
    expect(
        header.id_bytes == 2 || header.id_bytes == 4,
        "ids of 2 or 4 bytes, found ", header.id_bytes);
    expect(
        header.vocabulary >= 1 &&
            header.vocabulary <= static_cast<std::uint64_t>(kVocabularyMax),
        "a vocabulary in [1, ", kVocabularyMax, "], found ", header.vocabulary);
    const auto size = file.bytes().size();
    expect(
        header.tokens <= size && header.documents <= size,
        "no more tokens and documents than the file's ", size, " bytes, found ",
        header.tokens, " and ", header.documents);
  }

  std::uint64_t offset(std::uint64_t index) const {
    const auto ids_bytes = header.tokens * header.id_bytes;
    std::uint64_t value = 0;
    std::memcpy(
        &value,
        file.bytes().data() + sizeof(Header) + ids_bytes + padding(ids_bytes) +
            index * kOffsetBytes,
        sizeof(value));
    return value;
  }

  std::string_view ids() const {
    return file.bytes().substr(sizeof(Header), header.tokens * header.id_bytes);
  }

  std::string path;
  MappedFile file;
  Header header;
};

TokenFile::TokenFile(const std::string& path)
    : impl_(std::make_unique<Impl>()) {
  impl_->path = path;
  impl_->file = MappedFile::open(path).value();
  impl_->read_header();
}

TokenFile::~TokenFile() = default;

std::int64_t TokenFile::documents() const {
  return static_cast<std::int64_t>(impl_->header.documents);
}
std::int64_t TokenFile::tokens() const {
  return static_cast<std::int64_t>(impl_->header.tokens);
}
std::int64_t TokenFile::vocabulary() const {
  return static_cast<std::int64_t>(impl_->header.vocabulary);
}
std::uint64_t TokenFile::tokenizer_digest() const {
  return impl_->header.tokenizer_digest;
}
std::uint64_t TokenFile::ids_digest() const { return impl_->header.ids_digest; }
std::int64_t TokenFile::id_bytes() const { return impl_->header.id_bytes; }
const char* TokenFile::ids() const { return impl_->ids().data(); }

std::vector<std::int64_t> TokenFile::document(std::int64_t index) const {
  SHERD_CHECK(
      index >= 0 && index < documents(), "[data] ", impl_->path,
      ": expected a document in [0, ", documents(), "), found ", index);
  const auto begin = impl_->offset(static_cast<std::uint64_t>(index));
  const auto end = impl_->offset(static_cast<std::uint64_t>(index) + 1);
  SHERD_CHECK(
      begin <= end && end <= impl_->header.tokens, "[data] ", impl_->path,
      ": expected document ", index, " inside of the ", tokens(),
      " tokens, found [", begin, ", ", end, ")");
  std::vector<std::int64_t> ids(end - begin);
  const char* from = impl_->ids().data() + begin * impl_->header.id_bytes;
  for (auto& id : ids) {
    std::memcpy(&id, from, impl_->header.id_bytes);
    from += impl_->header.id_bytes;
  }
  return ids;
}

void TokenFile::verify() const {
  const auto tokens_end = impl_->header.tokens;
  SHERD_CHECK(
      digest_of(impl_->ids()) == impl_->header.ids_digest, "[data] ",
      impl_->path, ": expected the ids that were written, found others");
  std::uint64_t begin = 0;
  for (std::uint64_t i = 0; i <= impl_->header.documents; ++i) {
    const auto offset = impl_->offset(i);
    const bool first = i > 0 || offset == 0;
    const bool last = i < impl_->header.documents || offset == tokens_end;
    SHERD_CHECK(
        offset >= begin && first && last, "[data] ", impl_->path,
        ": expected documents that begin at token 0, follow each other and end "
        "at token ",
        tokens_end, ", found offset ", offset, " of document ", i);
    begin = offset;
  }
}

}  // namespace sherd::data
