#include "daemon/metrics/http_endpoint.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>
#include <string>

#include "lib/base/status_matchers.h"
#include "lib/base/unique_fd.h"

namespace torpor::metrics {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

Result<std::unique_ptr<HttpEndpoint>> Serve(int port, const std::string& text) {
  return HttpEndpoint::Start({"127.0.0.1", port, "/metrics", "text/plain; version=0.0.4"},
                             [text] { return text; });
}

UniqueFd Connect(int port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  return fd;
}

// All that comes back until the server hangs up.
std::string Ask(int port, const std::string& request) {
  const UniqueFd fd = Connect(port);
  EXPECT_EQ(::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  std::string answer;
  char part[4096];
  for (ssize_t got = 0; (got = ::recv(fd.get(), part, sizeof part, 0)) > 0;) {
    answer.append(part, static_cast<size_t>(got));
  }
  return answer;
}

std::string Get(int port, const std::string& path, const std::string& method = "GET") {
  return Ask(port, method + " " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
}

TEST(HttpEndpointTest, ServesOnePath) {
  const std::string text(200'000, 'x');
  const auto endpoint = Serve(0, text);
  ASSERT_THAT(endpoint, IsOk());
  const int port = (*endpoint)->port();
  EXPECT_THAT(Get(port, "/metrics"),
              AllOf(StartsWith("HTTP/1.1 200 OK\r\n"),
                    HasSubstr("\r\nContent-Type: text/plain; version=0.0.4\r\n"),
                    EndsWith("\r\n\r\n" + text)));
  EXPECT_THAT(Get(port, "/metrics?name[]=up"), StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(Get(port, "/metrics", "HEAD"),
              AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("\r\nContent-Length: 200000\r\n"),
                    EndsWith("\r\n\r\n")));
}

TEST(HttpEndpointTest, NothingElse) {
  const auto endpoint = Serve(0, "text");
  ASSERT_THAT(endpoint, IsOk());
  const int port = (*endpoint)->port();
  EXPECT_THAT(Get(port, "/"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Get(port, "/metrics/../x"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Get(port, "/metrics", "DELETE"), StartsWith("HTTP/1.1 501 "));
  EXPECT_THAT(Ask(port, "nonsense\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Ask(port, "GET /metrics HTTP/1.1\r\nX: " + std::string(100'000, 'x') + "\r\n\r\n"),
              testing::Not(HasSubstr(" 200 ")));
  EXPECT_THAT(Get(port, "/metrics"), EndsWith("text"));
}

TEST(HttpEndpointTest, OneThatSaysNothingHoldsUpNobody) {
  const auto endpoint = Serve(0, "text");
  ASSERT_THAT(endpoint, IsOk());
  const UniqueFd silent = Connect((*endpoint)->port());
  EXPECT_THAT(Get((*endpoint)->port(), "/metrics"), EndsWith("text"));
}

TEST(HttpEndpointTest, APortThatIsTaken) {
  const auto first = Serve(0, "text");
  ASSERT_THAT(first, IsOk());
  EXPECT_THAT(Serve((*first)->port(), "text"), HasReason("CANNOT_LISTEN"));
}

}  // namespace
}  // namespace torpor::metrics
