// TCP with certificates: those that openssl makes, of authorities right and wrong.

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <thread>

#include "lib/base/units.h"
#include "tests/harness/child_process.h"
#include "tests/security/access_fixture.h"

namespace torpor {
namespace {

using testing::HasSubstr;

// make NAME AUTHORITY SUBJECT EXTENSION... ; authority NAME
constexpr char kMake[] = R"(
set -euo pipefail
authority() {
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 10 \
    -subj "/CN=$1" -keyout "$1.key" -out "$1.pem"
}
make() {
  name=$1 authority=$2 subject=$3 days=$4; shift 4
  openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "$subject" \
    -keyout "$name.key" -out "$name.csr"
  printf '%s\n' basicConstraints=CA:FALSE "$@" > "$name.ext"
  openssl x509 -req -in "$name.csr" -CA "$authority.pem" -CAkey "$authority.key" -CAcreateserial \
    -days "$days" -extfile "$name.ext" -out "$name.pem"
}
authority ca
authority ca2
make server ca /CN=torpord 10 subjectAltName=DNS:localhost,IP:127.0.0.1
make named ca /CN=torpord 10 subjectAltName=DNS:torpord.internal
make later ca2 /CN=torpord 10 subjectAltName=DNS:localhost,IP:127.0.0.1
make operator ca /CN=anybody 10 subjectAltName=DNS:ops.example
make reader ca /CN=anybody 10 subjectAltName=URI:spiffe://example/monitor
make batch ca /CN=batch 10
make batch-with-san ca /CN=batch 10 subjectAltName=DNS:other.example
make batch-with-email ca /CN=batch 10 subjectAltName=email:a@other.example
make nobody ca /CN=anybody 10 subjectAltName=DNS:xops.example
make stranger ca2 /CN=anybody 10 subjectAltName=DNS:ops.example
make expired ca /CN=anybody -1 subjectAltName=DNS:ops.example
make servers-only ca /CN=anybody 10 subjectAltName=DNS:ops.example extendedKeyUsage=serverAuth
chmod 600 *.key
)";

constexpr char kGrants[] = R"(
grant { role: OPERATOR uid: 0 certificate: "dns:ops.example" }
grant { role: READER certificate: "uri:spiffe://example/monitor" loopback: true }
grant { role: WORKER certificate: "cn:batch" }
)";

class TlsTest : public AccessTest {
 protected:
  void SetUp() override {
    AccessTest::SetUp();
    if (IsSkipped()) return;
    if (!std::filesystem::exists("/usr/bin/openssl")) GTEST_SKIP() << "needs openssl";
    const auto made =
        RunProgram({"/bin/bash", "-c", "cd " + dir_.path() + "\n" + std::string(kMake)});
    ASSERT_THAT(made, IsOk());
    ASSERT_EQ(made->exit_status, 0) << made->errors;
    WriteFile(kGrants);
  }

  int RunShell(const std::string& command) const {
    const auto run = RunProgram({"/bin/bash", "-c", "cd " + dir_.path() + " && " + command});
    EXPECT_THAT(run, IsOk());
    return run.ok() ? run->exit_status : -1;
  }
  // As a renewal does it: each file is replaced as a whole.
  static void Renew(const std::string& from, const std::string& to, int mode = 0600) {
    std::filesystem::copy_file(from, to + ".new");
    std::filesystem::permissions(to + ".new", std::filesystem::perms(mode));
    std::filesystem::rename(to + ".new", to);
  }
  void AwaitLog(const std::string& what) const {
    const TimePoint until = Clock::Real().Now() + kPatience;
    while (daemon_->log().find(what) == std::string::npos && Clock::Real().Now() < until) {
      std::this_thread::sleep_for(milliseconds(50));
    }
    EXPECT_THAT(daemon_->log(), HasSubstr(what));
  }
  std::string pem(const std::string& name) const { return dir_.path() + "/" + name + ".pem"; }
  std::string key(const std::string& name) const { return dir_.path() + "/" + name + ".key"; }
  std::vector<std::string> TlsFlags(const std::string& name = "server",
                                    const std::string& listen = "127.0.0.1:0") const {
    return {"--listen=" + listen, "--tls_cert=" + pem(name), "--tls_key=" + key(name),
            "--tls_client_ca=" + pem("ca")};
  }
  std::string Address() const {
    const std::string greeting = daemon_->greeting();
    return "127.0.0.1" + greeting.substr(greeting.rfind(':'));
  }
  // With the certificate `name`; "": none. Each on a connection of its own.
  std::unique_ptr<v1::MemoryService::Stub> With(const std::string& name,
                                                const std::string& authority = "ca") const {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = ReadFile(pem(authority));
    if (!name.empty()) {
      options.pem_cert_chain = ReadFile(pem(name));
      options.pem_private_key = ReadFile(key(name));
    }
    return At(grpc::SslCredentials(options));
  }
  std::unique_ptr<v1::MemoryService::Stub> At(
      const std::shared_ptr<grpc::ChannelCredentials>& credentials) const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return v1::MemoryService::NewStub(grpc::CreateCustomChannel(Address(), credentials, arguments));
  }
  static grpc::Status Usage(v1::MemoryService::Stub& stub, v1::UsageResponse* response = nullptr) {
    v1::UsageResponse own;
    return stub.Usage(Context().get(), {}, response == nullptr ? &own : response);
  }
  static std::string Sleep(v1::MemoryService::Stub& stub, const std::string& worker) {
    v1::SleepRequest request;
    request.mutable_selector()->add_workers(worker);
    request.set_level(1);
    v1::SleepResponse response;
    return Outcome(stub.Sleep(Context().get(), request, &response));
  }
  Result<Finished> Refused(const std::vector<std::string>& flags) const {
    return RunProgram(DaemonProcess::Command(dir_.path(), flags));
  }
};

TEST_F(TlsTest, EachNameHasItsRole) {
  StartDaemon(TlsFlags());
  const auto worker = WorkerProcess::Connect(daemon_->worker_socket(), "engine");
  ASSERT_THAT(worker, IsOk());
  EXPECT_EQ(Sleep(*With("operator"), "engine"), "OK");
  v1::UsageResponse usage;
  EXPECT_EQ(Outcome(Usage(*With("reader"), &usage)), "OK");
  EXPECT_EQ(usage.workers_size(), 1);
  EXPECT_EQ(Sleep(*With("reader"), "engine"), "ACCESS_DENIED");
  for (const char* const name : {"batch-with-san", "batch-with-email", "nobody"}) {
    EXPECT_EQ(Outcome(Usage(*With(name))), "ACCESS_DENIED") << name;
  }
  const grpc::Status refused = Usage(*With("nobody"));
  EXPECT_EQ(DetailOf(refused, "certificate"), "dns:xops.example");
  EXPECT_THAT(refused.error_message(), HasSubstr("the certificate of dns:xops.example has none"));
}

TEST_F(TlsTest, ACertificateOwnsReservationsAndNoWorkers) {
  StartDaemon(TlsFlags());
  const auto worker = WorkerProcess::Connect(daemon_->worker_socket(), "engine");
  ASSERT_THAT(worker, IsOk());
  const auto batch = With("batch");
  EXPECT_EQ(Sleep(*batch, "engine"), "NOT_YOURS");
  v1::ReserveRequest reserve;
  reserve.set_name("job");
  reserve.add_parts()->set_name("weights");
  reserve.mutable_parts(0)->set_device_bytes(MiB(4).value());
  reserve.mutable_ttl()->set_seconds(600);
  v1::ReserveResponse own;
  v1::ReserveResponse operators;
  ASSERT_EQ(Outcome(batch->Reserve(Context().get(), reserve, &own)), "OK");
  ASSERT_EQ(Outcome(With("operator")->Reserve(Context().get(), reserve, &operators)), "OK");
  v1::UsageResponse usage;
  ASSERT_EQ(Outcome(Usage(*batch, &usage)), "OK");
  EXPECT_EQ(usage.workers_size(), 0);
  ASSERT_EQ(usage.reservations_size(), 1);
  EXPECT_EQ(usage.reservations(0).id(), own.reservation_id());
  v1::ReleaseRequest release;
  v1::ReleaseResponse released;
  release.set_reservation_id(operators.reservation_id());
  EXPECT_EQ(Outcome(batch->Release(Context().get(), release, &released)), "NOT_YOURS");
  release.set_reservation_id(own.reservation_id());
  EXPECT_EQ(Outcome(batch->Release(Context().get(), release, &released)), "OK");
}

TEST_F(TlsTest, WhoeverHasNoGoodCertificateDoesNotGetIn) {
  StartDaemon(TlsFlags("server", "0.0.0.0:0"));
  EXPECT_EQ(Outcome(Usage(*With("operator"))), "OK");
  for (const char* const name : {"", "stranger", "expired", "servers-only"}) {
    EXPECT_EQ(Usage(*With(name)).error_code(), grpc::StatusCode::UNAVAILABLE) << name;
  }
  EXPECT_EQ(Usage(*At(grpc::InsecureChannelCredentials())).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  // And the client wants a daemon of its authority.
  EXPECT_EQ(Usage(*With("operator", "ca2")).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Outcome(Usage(*With("operator"))), "OK");
  EXPECT_THAT(daemon_->Usage(), IsOk()) << "the socket is as ever";
  // Each failure is told in the daemon's way, and not each for itself.
  EXPECT_THAT(daemon_->log(), HasSubstr(" warning gRPC: "));
  EXPECT_THAT(daemon_->log(), testing::Not(HasSubstr("\nE")));
  EXPECT_EQ(*daemon_->Stop(), 0);
  EXPECT_GE(Told(daemon_->log(), " warning gRPC: "), 5) << daemon_->log();
}

TEST_F(TlsTest, LoopbackWithoutTlsIsSomebodyToo) {
  StartDaemon({"--listen=127.0.0.1:0"});
  const auto stub = At(grpc::InsecureChannelCredentials());
  EXPECT_EQ(Outcome(Usage(*stub)), "OK");
  EXPECT_EQ(Sleep(*stub, "engine"), "ACCESS_DENIED");
}

TEST_F(TlsTest, FilesThatAreWrongAreToldAtTheStart) {
  const std::string access = "--access=" + file();
  const auto tls = TlsFlags();
  const auto without = Refused({access, "--listen=0.0.0.0:0"});
  ASSERT_THAT(without, IsOk());
  EXPECT_EQ(without->exit_status, 2);
  EXPECT_THAT(without->errors, HasSubstr("mTLS"));
  const auto open = Refused({tls[0], tls[1], tls[2], tls[3]});
  ASSERT_THAT(open, IsOk());
  EXPECT_EQ(open->exit_status, 2);
  EXPECT_THAT(open->errors, HasSubstr("needs --access"));
  const auto mixed = Refused({access, tls[0], tls[1], "--tls_key=" + key("reader"), tls[3]});
  ASSERT_THAT(mixed, IsOk());
  EXPECT_THAT(mixed->errors, HasSubstr("BAD_TLS_FILE: " + key("reader") + " is not the private"));
  const auto missing = Refused({access, tls[0], tls[1], tls[2], "--tls_client_ca=" + pem("none")});
  ASSERT_THAT(missing, IsOk());
  EXPECT_THAT(missing->errors, HasSubstr("No such file"));
  ASSERT_EQ(RunShell("openssl pkey -in server.key -aes256 -passout pass:secret -out locked.key"),
            0);
  ASSERT_EQ(::chmod(key("locked").c_str(), 0600), 0);
  const auto locked = Refused({access, tls[0], tls[1], "--tls_key=" + key("locked"), tls[3]});
  ASSERT_THAT(locked, IsOk());
  EXPECT_EQ(locked->exit_status, 2);
  EXPECT_THAT(locked->errors, HasSubstr("BAD_TLS_FILE: " + key("locked") + " is encrypted"));
  EXPECT_THAT(locked->errors, testing::Not(HasSubstr("PEM pass phrase")));
  ASSERT_EQ(::chmod(key("server").c_str(), 0644), 0);
  const auto exposed = Refused({access, tls[0], tls[1], tls[2], tls[3]});
  ASSERT_THAT(exposed, IsOk());
  EXPECT_EQ(exposed->exit_status, 2);
  EXPECT_THAT(exposed->errors, HasSubstr("KEY_FILE_EXPOSED"));
}

TEST_F(TlsTest, RenewedCertificatesAreTakenUp) {
  StartDaemon(TlsFlags());
  const auto before = With("operator");
  EXPECT_EQ(Outcome(Usage(*before)), "OK");
  EXPECT_FALSE(Usage(*With("stranger")).ok());
  Renew(key("later"), key("server"));
  Renew(pem("later"), pem("server"));
  std::ofstream(pem("both")) << ReadFile(pem("ca")) << ReadFile(pem("ca2"));
  Renew(pem("both"), pem("ca"));
  const TimePoint until = Clock::Real().Now() + kPatience;
  grpc::Status now;
  while (!(now = Usage(*With("stranger", "ca2"))).ok() && Clock::Real().Now() < until) {
    std::this_thread::sleep_for(milliseconds(100));
  }
  EXPECT_TRUE(now.ok()) << now.error_message();
  EXPECT_EQ(Outcome(Usage(*before)), "OK") << "on the connection of before";
}

TEST_F(TlsTest, WhatIsNotGoodIsNotTakenUp) {
  StartDaemon(TlsFlags());
  EXPECT_EQ(Outcome(Usage(*With("operator"))), "OK");
  const auto still = [&] {
    // Longer than it takes to look, and to read.
    std::this_thread::sleep_for(milliseconds(2500));
    EXPECT_EQ(Outcome(Usage(*With("operator"))), "OK") << "by the certificate of before";
    EXPECT_FALSE(Usage(*With("stranger")).ok());
    EXPECT_FALSE(Usage(*With("operator", "ca2")).ok());
  };
  ASSERT_EQ(::chmod(key("server").c_str(), 0644), 0);
  AwaitLog("not taken up: INVALID_ARGUMENT KEY_FILE_EXPOSED");
  still();
  // Another certificate, which the key is not of.
  Renew(pem("later"), pem("server"));
  Renew(key("server"), key("server"));
  AwaitLog("not taken up: INVALID_ARGUMENT BAD_TLS_FILE: " + key("server") + " is not");
  still();
  // Its key, for everybody to read.
  Renew(key("later"), key("server"), 0644);
  still();
  ASSERT_EQ(::chmod(key("server").c_str(), 0600), 0);
  AwaitLog("have changed, and are taken up");
  const TimePoint until = Clock::Real().Now() + kPatience;
  while (!Usage(*With("operator", "ca2")).ok() && Clock::Real().Now() < until) {
    std::this_thread::sleep_for(milliseconds(100));
  }
  EXPECT_EQ(Outcome(Usage(*With("operator", "ca2"))), "OK");
}

TEST_F(TlsTest, TorporctlSaysWhoItIs) {
  StartDaemon(TlsFlags("named"));
  const std::string program = std::filesystem::absolute("client/ctl/torporctl");
  const std::vector<std::string> usage = {program, "usage", "--target=" + Address(),
                                          "--timeout=20s"};
  const auto run = [&](std::vector<std::string> more,
                       const std::map<std::string, std::string>& environment = {}) {
    more.insert(more.begin(), usage.begin(), usage.end());
    const auto finished = RunProgram(more, environment);
    EXPECT_THAT(finished, IsOk());
    return finished.ok() ? *finished : Finished();
  };
  const std::vector<std::string> flags = {"--tls-ca=" + pem("ca"), "--tls-cert=" + pem("operator"),
                                          "--tls-key=" + key("operator")};
  const std::string name = "--tls-name=torpord.internal";
  EXPECT_EQ(run({flags[0], flags[1], flags[2], name}).exit_status, 0);
  EXPECT_EQ(run({flags[0], flags[1], flags[2]}).exit_status, 1) << "it is called otherwise";
  EXPECT_EQ(run({}).exit_status, 1);
  const std::map<std::string, std::string> environment = {{"TORPOR_TLS_CA", pem("ca")},
                                                          {"TORPOR_TLS_CERT", pem("operator")},
                                                          {"TORPOR_TLS_KEY", key("operator")}};
  EXPECT_EQ(run({name}, environment).exit_status, 0);
  const Finished denied =
      run({name, "--tls-cert=" + pem("nobody"), "--tls-key=" + key("nobody")}, environment);
  EXPECT_EQ(denied.exit_status, 1);
  EXPECT_THAT(denied.errors, HasSubstr("ACCESS_DENIED"));
  // gRPC's own log is not among what it says, unless it is asked for.
  const std::vector<std::string> stranger = {"--tls-ca=" + pem("ca2"), flags[1], flags[2], name,
                                             "--json"};
  const Finished json = run(stranger);
  EXPECT_EQ(json.exit_status, 1);
  EXPECT_THAT(json.errors, testing::AllOf(testing::StartsWith("{"), testing::EndsWith("}\n")));
  EXPECT_THAT(run(stranger, {{"GRPC_VERBOSITY", "ERROR"}}).errors,
              HasSubstr("ssl_transport_security"));
  EXPECT_EQ(run({flags[0], flags[1]}).exit_status, 2);
  EXPECT_THAT(run({"--tls-ca=/none", flags[1], flags[2]}).errors, HasSubstr("BAD_TLS_FILE"));
  const Finished mixed = run({flags[0], flags[1], "--tls-key=" + key("nobody")});
  EXPECT_EQ(mixed.exit_status, 2);
  EXPECT_THAT(mixed.errors,
              testing::StartsWith("torporctl: INVALID_ARGUMENT BAD_TLS_FILE: " + key("nobody") +
                                  " is not the private key of " + pem("operator") + "\n"));
  EXPECT_THAT(run({flags[0], "--tls-cert=" + key("operator"), flags[2]}).errors,
              HasSubstr("BAD_TLS_FILE: " + key("operator") + " has no certificate"));
  EXPECT_THAT(run({"--tls-ca=" + key("ca"), flags[1], flags[2]}).errors,
              HasSubstr("BAD_TLS_FILE: " + key("ca") + " has no certificate of an authority"));
  ASSERT_EQ(RunShell("openssl pkey -aes256 -passout pass:x -in operator.key -out sealed.key"), 0);
  EXPECT_THAT(run({flags[0], flags[1], "--tls-key=" + key("sealed")}).errors,
              HasSubstr("BAD_TLS_FILE: " + key("sealed") + " has a passphrase"));
  // A socket needs none of it.
  const auto socket =
      RunProgram({program, "usage", "--target=" + daemon_->control_socket()}, environment);
  ASSERT_THAT(socket, IsOk());
  EXPECT_EQ(socket->exit_status, 0) << socket->errors;
}

}  // namespace
}  // namespace torpor
