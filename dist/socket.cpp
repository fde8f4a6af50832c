#include "dist/socket.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "core/check.h"

namespace mixtape::dist {
namespace {

using Clock = std::chrono::steady_clock;

// The address at one end of a connection: `get` is getsockname or getpeername.
Address address_of(int file, decltype(getsockname) get) {
  sockaddr_storage bytes = {};
  socklen_t size = sizeof bytes;
  get(file, reinterpret_cast<sockaddr*>(&bytes), &size);
  return {reinterpret_cast<const sockaddr*>(&bytes), size};
}

void set(int file, int level, int option, int value) {
  setsockopt(file, level, option, &value, sizeof value);
}

// A socket that sends small messages at once, and whose reads and writes do not block.
Socket made_ready(int file) {
  set(file, IPPROTO_TCP, TCP_NODELAY, 1);
  return Socket(file);
}

// Listens at one address, or returns -1.
int listen_at(const Address& address, int backlog) {
  const int file = socket(address.get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (file < 0) return -1;
  set(file, SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.get()->sa_family == AF_INET6) set(file, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (bind(file, address.get(), address.size()) == 0 && listen(file, backlog) == 0) return file;
  const int error = errno;
  close(file);
  errno = error;
  return -1;
}

// The address of a host given in numbers, "127.0.0.1" or "::".
Address numeric(const char* host, int port) {
  addrinfo wanted = {}, *found = nullptr;
  wanted.ai_flags = AI_NUMERICHOST;
  wanted.ai_socktype = SOCK_STREAM;
  const int error = getaddrinfo(host, std::to_string(port).c_str(), &wanted, &found);
  check(error == 0, "TCP: {}: {}", host, gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> all(found, freeaddrinfo);
  return {found->ai_addr, found->ai_addrlen};
}

}  // namespace

Deadline::Deadline(double seconds)
    : end_(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                              std::chrono::duration<double>(std::min(seconds, 1e9)))) {}
bool Deadline::has_passed() const { return Clock::now() >= end_; }
bool Deadline::wait(int file, short events) const {
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end_ - Clock::now()).count();
    pollfd one{file, events, 0};
    if (poll(&one, 1, int(std::clamp<int64_t>(left, 0, 1000))) > 0) return true;
    if (has_passed()) return false;
  }
}

Address::Address(const sockaddr* address, socklen_t size) {
  std::memcpy(&bytes_, address, std::min(size_t(size), sizeof bytes_));
  if (bytes_.ss_family != AF_INET6) return;
  sockaddr_in6 v6;
  std::memcpy(&v6, &bytes_, sizeof v6);
  if (!IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) return;
  sockaddr_in v4 = {};
  v4.sin_family = AF_INET;
  v4.sin_port = v6.sin6_port;
  std::memcpy(&v4.sin_addr, &v6.sin6_addr.s6_addr[12], sizeof v4.sin_addr);
  bytes_ = {};
  std::memcpy(&bytes_, &v4, sizeof v4);
}
socklen_t Address::size() const {
  return bytes_.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}
int Address::port() const {  // at the same place for IPv4 and IPv6
  return ntohs(reinterpret_cast<const sockaddr_in*>(&bytes_)->sin_port);
}
Address Address::at(int port) const {
  Address other = *this;
  reinterpret_cast<sockaddr_in*>(&other.bytes_)->sin_port = htons(uint16_t(port));
  return other;
}
bool Address::is_loopback() const {
  if (bytes_.ss_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&bytes_)->sin6_addr);
  return ntohl(reinterpret_cast<const sockaddr_in*>(&bytes_)->sin_addr.s_addr) >> 24 == 127;
}
std::string Address::to_string() const {
  char host[NI_MAXHOST] = "?";
  getnameinfo(get(), size(), host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  return fmt::format("{}:{}", host, port());
}

Socket::Socket(Socket&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(file_, other.file_);
  return *this;
}
Socket::~Socket() {
  if (file_ >= 0) close(file_);
}

bool Socket::connect(const std::string& host, int port, std::string& problem) {
  addrinfo wanted = {}, *found = nullptr;
  wanted.ai_socktype = SOCK_STREAM;
  if (const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found)) {
    problem = gai_strerror(error);
    return false;
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> all(found, freeaddrinfo);
  for (const addrinfo* a = found; a; a = a->ai_next)
    if (connect(Address(a->ai_addr, a->ai_addrlen), problem)) return true;
  return false;
}

bool Socket::connect(const Address& there, std::string& problem) {
  Socket made = made_ready(socket(there.get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (made && ::connect(made.file_, there.get(), there.size()) == 0) {
    *this = std::move(made);
    return true;
  }
  problem = std::strerror(errno);
  return false;
}

Address Socket::peer() const { return address_of(file_, getpeername); }

ssize_t Socket::move(iovec (&parts)[2], bool sends) const {
  msghdr message = {};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  const ssize_t moved = sends ? sendmsg(file_, &message, MSG_NOSIGNAL | MSG_DONTWAIT)
                              : recvmsg(file_, &message, MSG_DONTWAIT);
  if (moved > 0 || (moved == 0 && sends)) return moved;
  return moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) ? 0 : -1;
}

bool Socket::move_all(void* data, size_t bytes, const Deadline& deadline, bool sends) const {
  for (size_t at = 0; at < bytes;) {
    iovec parts[] = {{static_cast<char*>(data) + at, bytes - at}, {nullptr, 0}};
    const ssize_t moved = move(parts, sends);
    if (moved < 0 || (moved == 0 && !deadline.wait(file_, sends ? POLLOUT : POLLIN))) return false;
    at += size_t(moved);
  }
  return true;
}
bool Socket::send(const void* data, size_t bytes, const Deadline& deadline) const {
  return move_all(const_cast<void*>(data), bytes, deadline, true);
}
bool Socket::receive(void* data, size_t bytes, const Deadline& deadline) const {
  return move_all(data, bytes, deadline, false);
}
void Socket::reset() noexcept {
  const linger none{1, 0};
  setsockopt(file_, SOL_SOCKET, SO_LINGER, &none, sizeof none);
  close(std::exchange(file_, -1));
}
bool Socket::has_ended() const {
  pollfd one{file_, POLLRDHUP, 0};
  return poll(&one, 1, 0) > 0 && one.revents;
}

Listener::Listener(const std::string& host, int port, int backlog) {
  if (host == "localhost" || host == "::1" || host.starts_with("127."))
    file_ = listen_at(numeric(host == "localhost" ? "127.0.0.1" : host.c_str(), port), backlog);
  else if ((file_ = listen_at(numeric("::", port), backlog)) < 0)  // fails without IPv6
    file_ = listen_at(numeric("0.0.0.0", port), backlog);
  check(file_ >= 0, "TCP: cannot listen at port {}: {}", port, std::strerror(errno));
}
Listener::~Listener() { close(file_); }
int Listener::port() const { return address_of(file_, getsockname).port(); }
Socket Listener::accept(const Deadline& deadline) const {
  while (deadline.wait(file_, POLLIN)) {
    const int file = accept4(file_, nullptr, nullptr, SOCK_CLOEXEC);
    if (file >= 0) return made_ready(file);
    check(errno == EINTR || errno == EAGAIN || errno == ECONNABORTED, "TCP: cannot accept: {}",
          std::strerror(errno));
  }
  return {};
}

}  // namespace mixtape::dist
