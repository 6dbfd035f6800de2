#include "daemon/events/event_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

namespace torpor {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

EventBody Numbered(int number) {
  ReservationEvent event;
  event.id = std::to_string(number);
  return event;
}

std::string IdOf(const Event& event) { return std::get<ReservationEvent>(event.body).id; }

std::vector<uint64_t> Sequences(const EventLog::Batch& batch) {
  std::vector<uint64_t> sequences;
  for (const auto& event : batch.events) sequences.push_back(event->sequence);
  return sequences;
}

TEST(EventLogTest, StartsEmpty) {
  const EventLog log(4);
  EXPECT_EQ(log.last(), 0U);
  const EventLog::Batch batch = log.Read(0, 10);
  EXPECT_EQ(batch.lost, 0U);
  EXPECT_THAT(batch.events, IsEmpty());
}

TEST(EventLogTest, EachStartHasItsId) {
  const EventLog first(4);
  const EventLog second(4);
  EXPECT_THAT(first.boot_id(), testing::MatchesRegex("[0-9a-f]+"));
  EXPECT_EQ(first.boot_id().size(), 16U);
  EXPECT_NE(first.boot_id(), second.boot_id());
}

TEST(EventLogTest, ReadsBehindAPosition) {
  EventLog log(4);
  const auto before = std::chrono::system_clock::now();
  for (int i = 1; i <= 3; ++i) log.Publish(Numbered(i));
  EXPECT_EQ(log.last(), 3U);
  EXPECT_THAT(Sequences(log.Read(0, 10)), ElementsAre(1, 2, 3));
  EXPECT_THAT(Sequences(log.Read(0, 2)), ElementsAre(1, 2));
  EXPECT_THAT(Sequences(log.Read(2, 10)), ElementsAre(3));
  EXPECT_THAT(log.Read(3, 10).events, IsEmpty());
  const EventLog::Batch batch = log.Read(1, 1);
  ASSERT_EQ(batch.events.size(), 1U);
  EXPECT_EQ(IdOf(*batch.events[0]), "2");
  EXPECT_GE(batch.events[0]->time, before);
}

TEST(EventLogTest, ForgetsTheOldestAndSaysHowMany) {
  EventLog log(4);
  for (int i = 1; i <= 4; ++i) log.Publish(Numbered(i));
  EXPECT_EQ(log.Read(0, 10).lost, 0U);
  for (int i = 5; i <= 10; ++i) log.Publish(Numbered(i));
  const EventLog::Batch all = log.Read(0, 10);
  EXPECT_EQ(all.lost, 6U);
  EXPECT_THAT(Sequences(all), ElementsAre(7, 8, 9, 10));
  EXPECT_EQ(IdOf(*all.events[0]), "7");
  EXPECT_EQ(log.Read(5, 1).lost, 1U);
  EXPECT_THAT(Sequences(log.Read(5, 1)), ElementsAre(7));
  EXPECT_EQ(log.Read(6, 10).lost, 0U);
}

TEST(EventLogTest, WhatWasReadStays) {
  EventLog log(2);
  log.Publish(Numbered(1));
  const EventLog::Batch batch = log.Read(0, 1);
  for (int i = 2; i <= 9; ++i) log.Publish(Numbered(i));
  EXPECT_EQ(IdOf(*batch.events[0]), "1");
}

TEST(EventLogTest, WaitsForAnEventOrAStop) {
  EventLog log(4);
  std::atomic<bool> stop = false;
  std::thread waiter([&] { log.WaitBehind(0, stop); });
  log.Publish(Numbered(1));
  waiter.join();
  log.WaitBehind(0, stop);  // at once
  waiter = std::thread([&] { log.WaitBehind(1, stop); });
  stop = true;
  log.Wake();
  waiter.join();
}

// Every reader gets every event once and in order, but for those that it is told it lost; events of
// one publisher come in its order.
TEST(EventLogTest, ManyPublishersAndReaders) {
  constexpr int kPublishers = 4;
  constexpr int kEach = 5000;
  EventLog log(256);
  std::vector<std::thread> threads;
  threads.reserve(kPublishers + 3);
  for (int p = 0; p < kPublishers; ++p) {
    threads.emplace_back([&log, p] {
      for (int i = 0; i < kEach; ++i) {
        ReservationEvent event;
        event.id = std::to_string(p);
        event.device = Bytes(i);
        log.Publish(std::move(event));
      }
    });
  }
  for (size_t r = 0; r < 3; ++r) {
    threads.emplace_back([&log, r] {
      const std::atomic<bool> stop = false;
      uint64_t position = 0;
      uint64_t seen = 0;
      uint64_t lost = 0;
      std::map<std::string, Bytes> newest;
      while (position < uint64_t{kPublishers} * kEach) {
        log.WaitBehind(position, stop);
        const EventLog::Batch batch = log.Read(position, 1 + 31 * r);
        position += batch.lost;
        lost += batch.lost;
        for (const auto& event : batch.events) {
          ASSERT_EQ(event->sequence, ++position);
          ++seen;
          const auto& body = std::get<ReservationEvent>(event->body);
          const auto [it, first] = newest.try_emplace(body.id, body.device);
          if (!first) {
            ASSERT_GT(body.device, it->second);
            it->second = body.device;
          }
        }
      }
      EXPECT_EQ(seen + lost, static_cast<uint64_t>(kPublishers * kEach));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(log.last(), static_cast<uint64_t>(kPublishers * kEach));
}

}  // namespace
}  // namespace torpor
