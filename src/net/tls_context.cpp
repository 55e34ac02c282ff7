// SPDX-License-Identifier: Apache-2.0
#include "net/tls_context.h"

#include <array>
#include <cstring>
#include <string_view>
#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/ssl.h>
#include "base/check.h"

namespace sherd::net {
namespace {

// The hash of the key must be that of the only cipher suite.
constexpr const char* kCipherSuite = "TLS_AES_128_GCM_SHA256";
constexpr std::array<unsigned char, 2> kCipherSuiteId = {0x13, 0x01};
constexpr std::size_t kKeyBytes = 32;
constexpr std::string_view kIdentity = "sherd 1";
// Separates the keys from other uses of the same secret.
constexpr std::string_view kKeyPurpose = "sherd messages: TLS pre-shared key 1";

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

OSSL_PARAM octets(const char* name, std::string_view text) {
  // OpenSSL only reads it, although the type does not say so.
  return OSSL_PARAM_construct_octet_string(
      name, const_cast<char*>(text.data()), text.size());
}

// HKDF of RFC 5869.
std::string key_of(const std::string& secret) {
  const std::unique_ptr<EVP_KDF, decltype(&EVP_KDF_free)> kdf(
      EVP_KDF_fetch(nullptr, OSSL_KDF_NAME_HKDF, nullptr), EVP_KDF_free);
  SHERD_ASSERT(kdf != nullptr, "OpenSSL without HKDF");
  const std::unique_ptr<EVP_KDF_CTX, decltype(&EVP_KDF_CTX_free)> context(
      EVP_KDF_CTX_new(kdf.get()), EVP_KDF_CTX_free);
  std::string hash = "SHA256";
  const std::array<OSSL_PARAM, 4> params = {
      OSSL_PARAM_construct_utf8_string(
          OSSL_KDF_PARAM_DIGEST, hash.data(), hash.size()),
      octets(OSSL_KDF_PARAM_KEY, secret),
      octets(OSSL_KDF_PARAM_INFO, kKeyPurpose), OSSL_PARAM_construct_end()};
  std::string key(kKeyBytes, '\0');
  const int result = EVP_KDF_derive(
      context.get(), reinterpret_cast<unsigned char*>(key.data()), key.size(),
      params.data());
  SHERD_ASSERT(result == 1, "HKDF failed");
  return key;
}

// The index under which an SSL_CTX keeps the pointer to its TlsContext. Asio uses the place that
// OpenSSL itself offers.
int back_index() {
  static const int kIndex =
      SSL_CTX_get_ex_new_index(0, nullptr, nullptr, nullptr, nullptr);
  return kIndex;
}

// OpenSSL represents a pre-shared key as a made-up session. Null if memory has run out: then the
// handshake fails.
SSL_SESSION* session_of_key(SSL* ssl) {
  const auto* tls = static_cast<const TlsContext*>(
      SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), back_index()));
  const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, kCipherSuiteId.data());
  SSL_SESSION* session = SSL_SESSION_new();
  if (session == nullptr || cipher == nullptr ||
      SSL_SESSION_set1_master_key(
          session, bytes_of(tls->key), tls->key.size()) != 1 ||
      SSL_SESSION_set_cipher(session, cipher) != 1 ||
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) != 1 ||
      SSL_SESSION_set1_id_context(
          session, bytes_of(kIdentity),
          static_cast<unsigned>(kIdentity.size())) != 1) {
    SSL_SESSION_free(session);
    return nullptr;
  }
  return session;
}

int use_key(
    SSL* ssl,
    const EVP_MD* /*hash, of the one suite*/,
    const unsigned char** identity,
    std::size_t* identity_bytes,
    SSL_SESSION** session) {
  *session = session_of_key(ssl);
  *identity = bytes_of(kIdentity);
  *identity_bytes = kIdentity.size();
  return *session != nullptr ? 1 : 0;
}

int find_key(
    SSL* ssl,
    const unsigned char* identity,
    std::size_t identity_bytes,
    SSL_SESSION** session) {
  *session = nullptr;
  // There is no key for another identity, and no certificate either.
  if (identity_bytes != kIdentity.size() ||
      std::memcmp(identity, kIdentity.data(), identity_bytes) != 0) {
    return 1;
  }
  *session = session_of_key(ssl);
  return *session != nullptr ? 1 : 0;
}

void set_secret(TlsContext& tls, const std::string& secret) {
  SHERD_CHECK(
      secret.size() >= kSecretBytesMin, "[net] expected a secret of at least ",
      kSecretBytesMin, " bytes, found ", secret.size());
  tls.key = key_of(secret);
  SSL_CTX* context = tls.context.native_handle();
  SHERD_ASSERT(SSL_CTX_set_ex_data(context, back_index(), &tls) == 1);
  SHERD_ASSERT(SSL_CTX_set_ciphersuites(context, kCipherSuite) == 1);
  // A verifying side accepts no session from another context, and the key's session is one.
  SHERD_ASSERT(
      SSL_CTX_set_session_id_context(
          context, bytes_of(kIdentity), kIdentity.size()) == 1);
  SSL_CTX_set_psk_use_session_callback(context, use_key);
  SSL_CTX_set_psk_find_session_callback(context, find_key);
}

void check_loaded(
    const std::error_code& error, const char* what, const std::string& path) {
  SHERD_CHECK(
      !error, "[net] expected ", what, " in PEM form at ", path,
      ", found: ", error.message());
}

void set_files(TlsContext& tls, const TlsFiles& files) {
  asio::ssl::context& context = tls.context;
  std::error_code error;
  context.use_certificate_chain_file(files.certificate, error);
  check_loaded(error, "a certificate", files.certificate);
  // Without this, OpenSSL would ask at the terminal, where a rank waits for ever.
  context.set_password_callback(
      [](std::size_t, asio::ssl::context::password_purpose) {
        return std::string();
      },
      error);
  SHERD_ASSERT(!error);
  context.use_private_key_file(files.key, asio::ssl::context::pem, error);
  check_loaded(error, "the certificate's unencrypted key", files.key);
  context.load_verify_file(files.authority, error);
  check_loaded(error, "the authority's certificate", files.authority);
}

}  // namespace

std::shared_ptr<TlsContext> make_tls_context(const Security& security) {
  if (security.kind == Security::Kind::kNone) {
    return nullptr;
  }
  const auto tls = std::make_shared<TlsContext>();
  tls->kind = security.kind;
  tls->peer = security.peer;
  SSL_CTX* context = tls->context.native_handle();
  SHERD_ASSERT(SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SHERD_ASSERT(SSL_CTX_set_num_tickets(context, 0) == 1);
  // With a secret no side has a certificate, so one that is presented is refused.
  SSL_CTX_set_verify(
      context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  if (security.kind == Security::Kind::kSharedSecret) {
    set_secret(*tls, security.secret);
  } else {
    set_files(*tls, security.files);
  }
  return tls;
}

}  // namespace sherd::net
