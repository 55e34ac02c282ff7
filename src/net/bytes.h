// SPDX-License-Identifier: Apache-2.0
//
// ByteWriter and ByteReader serialise values: little-endian integers in their full width, texts and
// lists preceded by their length. The reader is safe for bytes from untrusted peers. Its first
// failure, a sentence, stays, and from then on it returns zeros and empty texts, so that a decoder
// checks only once, at its end. Thread rule: one thread.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include "base/status.h"

namespace sherd::net {

class ByteWriter {
 public:
  void u8(std::uint8_t value) { put(value); }
  void u16(std::uint16_t value) { put(value); }
  void u32(std::uint32_t value) { put(value); }
  void u64(std::uint64_t value) { put(value); }
  void i64(std::int64_t value) { put(static_cast<std::uint64_t>(value)); }
  void f64(double value) { put(std::bit_cast<std::uint64_t>(value)); }
  void boolean(bool value) { put(static_cast<std::uint8_t>(value ? 1 : 0)); }
  // Writes a u32; the caller writes the elements.
  void count(std::size_t elements);
  // Writes the length and the bytes.
  void text(std::string_view value);
  // Writes only the bytes, without a length.
  void raw(std::string_view value) { bytes_ += value; }

  // This many bytes can be written without moving the existing ones.
  void reserve(std::size_t bytes) { bytes_.reserve(bytes); }

  const std::string& bytes() const { return bytes_; }
  std::string take() { return std::exchange(bytes_, {}); }

 private:
  template <typename Unsigned>
  void put(Unsigned value) {
    static_assert(std::is_unsigned_v<Unsigned>);
    std::array<char, sizeof value> bytes{};
    for (std::size_t i = 0; i < sizeof value; ++i) {
      bytes[i] = static_cast<char>(
          static_cast<unsigned char>(value >> (8 * i) & 0xffU));
    }
    bytes_.append(bytes.data(), bytes.size());
  }

  std::string bytes_;
};

// `what` is a literal that names the value in the failure's sentence.
class ByteReader {
 public:
  // The bytes must outlive the reader.
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}

  std::uint8_t u8(const char* what) { return get<std::uint8_t>(what); }
  std::uint16_t u16(const char* what) { return get<std::uint16_t>(what); }
  std::uint32_t u32(const char* what) { return get<std::uint32_t>(what); }
  std::uint64_t u64(const char* what) { return get<std::uint64_t>(what); }
  std::int64_t i64(const char* what) {
    return static_cast<std::int64_t>(get<std::uint64_t>(what));
  }
  double f64(const char* what) {
    return std::bit_cast<double>(get<std::uint64_t>(what));
  }
  // Refuses any byte but 0 and 1.
  bool boolean(const char* what);
  // For enums: refuses a byte above `last`.
  std::uint8_t choice(const char* what, std::uint8_t last);

  struct Limits {
    std::size_t elements_max = 0;
    // The least size of an element. The remaining bytes must have room for all elements, so that a
    // caller may reserve() the returned count.
    std::size_t element_bytes = 1;
  };
  // The number of elements that follow; 0 after a failure.
  std::size_t count(const char* what, const Limits& limits);
  std::string text(const char* what, std::size_t bytes_max);
  // A view of the next `count` bytes; empty if there are fewer.
  std::string_view raw(const char* what, std::size_t count) {
    if (!ok() || count > left()) {
      fail_short(what, count);
      return {};
    }
    const std::string_view found = bytes_.substr(at_, count);
    at_ += count;
    return found;
  }

  // Reports an error that the decoder itself has found; only the first failure counts.
  void fail(std::string reason);

  bool ok() const { return failure_.empty(); }
  std::size_t left() const { return bytes_.size() - at_; }
  // Must be called last: it also fails if bytes are left. Its sentence is "[net] <message>:
  // <reason>".
  Status finish(const std::string& message);
  // The same for the value that was read.
  template <typename T>
  Result<T> finish(const std::string& message, T value) {
    Status status = finish(message);
    return status.ok() ? Result<T>(std::move(value))
                       : Result<T>(std::move(status));
  }

 private:
  void fail_short(const char* what, std::size_t count);
  template <typename Unsigned>
  Unsigned get(const char* what) {
    const std::string_view from = raw(what, sizeof(Unsigned));
    std::uint64_t value = 0;
    if (from.empty()) {
      return 0;
    }
    for (std::size_t i = 0; i < sizeof(Unsigned); ++i) {
      value |= std::uint64_t{static_cast<unsigned char>(from[i])} << (8 * i);
    }
    return static_cast<Unsigned>(value);
  }

  std::string_view bytes_;
  std::size_t at_ = 0;
  std::string failure_;
};

}  // namespace sherd::net
