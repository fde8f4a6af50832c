#pragma once
// Socket: TCP connections over IPv4 or IPv6, and listeners for them. No function blocks for ever.

#include <sys/socket.h>
#include <sys/uio.h>

#include <chrono>
#include <string>

#include "core/no_copy.h"

namespace mixtape::dist {

class Deadline {
 public:
  explicit Deadline(double seconds);
  bool has_passed() const;
  bool wait(int file, short events) const;  // until the file is ready; false if the time is over
 private:
  std::chrono::steady_clock::time_point end_;
};

// A host and a port.
class Address {
 public:
  Address() = default;
  Address(const sockaddr* address, socklen_t size);  // IPv4 within IPv6 becomes IPv4
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes_); }
  socklen_t size() const;
  int port() const;
  Address at(int port) const;  // the same host
  bool is_loopback() const;
  std::string to_string() const;

 private:
  sockaddr_storage bytes_ = {};
};

class Socket : NoCopy {
 public:
  Socket() = default;
  explicit Socket(int file) : file_(file) {}
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();
  explicit operator bool() const { return file_ >= 0; }

  // If no process listens there, returns false and sets `problem`.
  bool connect(const std::string& host, int port, std::string& problem);
  bool connect(const Address& there, std::string& problem);
  Address peer() const;
  // Transfers all bytes; false if the connection ends or the time is over.
  bool send(const void* data, size_t bytes, const Deadline& deadline) const;
  bool receive(void* data, size_t bytes, const Deadline& deadline) const;
  // Sends or receives as much as is possible now. Returns the number of bytes, or -1 if the
  // connection has ended.
  ssize_t move(iovec (&parts)[2], bool sends) const;
  // Ends the connection as if it broke.
  void reset() noexcept;
  bool has_ended() const;  // true if the other end closed it, in good order or not

 private:
  bool move_all(void* data, size_t bytes, const Deadline& deadline, bool sends) const;
  int file_ = -1;
};

class Listener : NoCopy {
 public:
  // If `host` is localhost, 127.* or ::1, listens there, so that only this machine can connect;
  // else at all addresses. Port 0 stands for any free one. Throws Error if the port is taken.
  Listener(const std::string& host, int port, int backlog);
  ~Listener();
  int port() const;
  Socket accept(const Deadline& deadline) const;  // none if the time is over

 private:
  int file_;
};

}  // namespace mixtape::dist
