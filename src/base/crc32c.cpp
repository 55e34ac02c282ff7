// SPDX-License-Identifier: Apache-2.0
#include "base/crc32c.h"

#include <array>
#include <bit>
#include <cstring>
#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace sherd {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // Bits reversed.
using Table = std::array<std::uint32_t, 256>;

// tables[k][b] is the CRC of byte b followed by k zero bytes, from 0.
constexpr std::array<Table, 8> make_tables() {
  std::array<Table, 8> tables = {};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1U) ^ ((crc & 1U) != 0 ? kPolynomial : 0);
    }
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < tables.size(); ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t crc = tables[k - 1][byte];
      tables[k][byte] = (crc >> 8U) ^ tables[0][crc & 0xffU];
    }
  }
  return tables;
}
constexpr std::array<Table, 8> kTables = make_tables();

std::uint64_t load_8(const unsigned char* at) {
  std::uint64_t word = 0;
  std::memcpy(&word, at, sizeof word);
  return word;
}

#if defined(__x86_64__)

// The instruction has a latency of three cycles and can start every cycle, so three runs of bytes
// are computed side by side. kShift joins them: a CRC without its inversions is linear, so the
// first run's value counts as if a run of zeros followed it.
constexpr std::size_t kRunBytes = 1024;

constexpr std::uint32_t shifted_by_a_run(std::uint32_t crc) {
  for (std::size_t i = 0; i < kRunBytes; ++i) {
    crc = (crc >> 8U) ^ kTables[0][crc & 0xffU];
  }
  return crc;
}

// shift[k][b] is the value for byte b at position k.
constexpr std::array<Table, 4> make_shift() {
  std::array<Table, 4> shift = {};
  for (std::uint32_t k = 0; k < 4; ++k) {
    // The function is linear: compute the powers of two first, then their sums.
    for (std::uint32_t bit = 0; bit < 8; ++bit) {
      const std::uint32_t power = shifted_by_a_run(1U << (8 * k + bit));
      for (std::uint32_t below = 0; below < (1U << bit); ++below) {
        shift[k][(1U << bit) + below] = power ^ shift[k][below];
      }
    }
  }
  return shift;
}
constexpr std::array<Table, 4> kShift = make_shift();

std::uint64_t shift_a_run(std::uint64_t crc) {
  return kShift[0][crc & 0xffU] ^ kShift[1][(crc >> 8U) & 0xffU] ^
      kShift[2][(crc >> 16U) & 0xffU] ^ kShift[3][(crc >> 24U) & 0xffU];
}

__attribute__((target("sse4.2"))) std::uint32_t by_instruction(
    const unsigned char* at, std::size_t count, std::uint32_t before) {
  std::uint64_t crc = ~before;
  for (; count >= 3 * kRunBytes; at += 3 * kRunBytes, count -= 3 * kRunBytes) {
    std::uint64_t second = 0;
    std::uint64_t third = 0;
    for (std::size_t i = 0; i < kRunBytes; i += 8) {
      crc = _mm_crc32_u64(crc, load_8(at + i));
      second = _mm_crc32_u64(second, load_8(at + kRunBytes + i));
      third = _mm_crc32_u64(third, load_8(at + 2 * kRunBytes + i));
    }
    crc = shift_a_run(shift_a_run(crc) ^ second) ^ third;
  }
  for (; count >= 8; at += 8, count -= 8) {
    crc = _mm_crc32_u64(crc, load_8(at));
  }
  auto low = static_cast<std::uint32_t>(crc);
  for (; count > 0; ++at, --count) {
    low = _mm_crc32_u8(low, *at);
  }
  return ~low;
}

#endif

}  // namespace

std::uint32_t crc32c_by_table(
    const void* bytes, std::size_t count, std::uint32_t before) {
  const auto* at = static_cast<const unsigned char*>(bytes);
  std::uint32_t crc = ~before;
  for (; count >= 8; at += 8, count -= 8) {
    const std::uint64_t word = load_8(at) ^ crc;
    crc = 0;
    for (unsigned i = 0; i < 8; ++i) {
      crc ^= kTables[7 - i][(word >> (8 * i)) & 0xffU];
    }
  }
  for (; count > 0; ++at, --count) {
    crc = (crc >> 8U) ^ kTables[0][(crc ^ *at) & 0xffU];
  }
  return ~crc;
}

std::uint32_t crc32c(
    const void* bytes, std::size_t count, std::uint32_t before) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2") != 0) {
    return by_instruction(
        static_cast<const unsigned char*>(bytes), count, before);
  }
#endif
  return crc32c_by_table(bytes, count, before);
}

}  // namespace sherd
