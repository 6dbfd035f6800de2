#include "lib/cuda/owners.h"

#include <atomic>
#include <cstdio>
#include <utility>

namespace torpor {
namespace {

void PrintError(const Status& status) {
  std::fprintf(stderr, "torpor: %s\n", status.ToString().c_str());
}

std::atomic<DriverErrorSink> error_sink{&PrintError};

// What a destructor cannot undo is lost for the process, so it tries twice.
template <typename Call>
void UndoOrReport(const Call& call) {
  const Status first = call();
  if (first.ok()) return;
  error_sink.load()(first);
  if (const Status second = call(); !second.ok()) error_sink.load()(second);
}

}  // namespace

void SetDriverErrorSink(DriverErrorSink sink) { error_sink = sink != nullptr ? sink : &PrintError; }

Result<std::shared_ptr<PhysicalAllocation>> PhysicalAllocation::Create(Driver& driver, Bytes size) {
  TORPOR_ASSIGN_OR_RETURN(const MemoryHandle handle, driver.Create(size));
  return std::shared_ptr<PhysicalAllocation>(new PhysicalAllocation(driver, handle, size));
}

Result<std::shared_ptr<PhysicalAllocation>> PhysicalAllocation::Import(Driver& driver, int fd,
                                                                       Bytes size) {
  TORPOR_ASSIGN_OR_RETURN(const MemoryHandle handle, driver.Import(fd, size));
  return std::shared_ptr<PhysicalAllocation>(new PhysicalAllocation(driver, handle, size));
}

PhysicalAllocation::~PhysicalAllocation() {
  UndoOrReport([&] { return driver_.Release(handle_); });
}

Result<std::shared_ptr<AddressReservation>> AddressReservation::Create(Driver& driver, Bytes size) {
  TORPOR_ASSIGN_OR_RETURN(const DeviceAddress address, driver.ReserveAddresses(size, Bytes(0)));
  return std::shared_ptr<AddressReservation>(new AddressReservation(driver, address, size));
}

AddressReservation::~AddressReservation() {
  UndoOrReport([&] { return driver_.FreeAddresses(address_, size_); });
}

Result<std::shared_ptr<ScopedMapping>> ScopedMapping::Create(
    Driver& driver, std::shared_ptr<AddressReservation> reservation, Bytes offset,
    std::shared_ptr<PhysicalAllocation> allocation, Access access) {
  const Bytes size = allocation->size();
  if (offset < Bytes(0) || size > reservation->size() || offset > reservation->size() - size) {
    return InvalidArgument("DRIVER_INVALID_VALUE", "map: outside the reservation")
        .With("offset_bytes", offset.value())
        .With("requested_bytes", size.value());
  }
  const DeviceAddress address = reservation->address() + offset;
  TORPOR_RETURN_IF_ERROR(driver.Map(address, size, allocation->handle()));
  // From here its destructor takes the mapping back.
  std::shared_ptr<ScopedMapping> mapping(
      new ScopedMapping(driver, std::move(reservation), std::move(allocation), address));
  TORPOR_RETURN_IF_ERROR(driver.SetAccess(address, size, access));
  return mapping;
}

ScopedMapping::~ScopedMapping() {
  UndoOrReport([&] { return driver_.Unmap(address_, size()); });
}

}  // namespace torpor
