#include "daemon/pool/image.h"

#include <algorithm>
#include <utility>

namespace torpor {

Image::Image(ImageStore& store, Bytes size, std::vector<HostPool::Block> blocks, Draw draw)
    : store_(store), size_(size), blocks_(std::move(blocks)), draw_(std::move(draw)) {
  Bytes at{};
  for (const HostPool::Block& block : blocks_) {
    stored_ += block.size;
    for (Bytes in_block{}; in_block < block.size && at < size; in_block += kImageChunk) {
      const Bytes length = std::min({size - at, block.size - in_block, kImageChunk});
      chunks_.push_back({block.data + in_block.value(), length, at, length, Encoding::kPlain, {}});
      at += length;
    }
  }
}

Image::~Image() { store_.End(*this); }

Bytes Image::stored() const {
  MutexLock lock(store_.mutex_);
  return stored_;
}

bool Image::held() const {
  MutexLock lock(store_.mutex_);
  return state_ == State::kHeld;
}

Result<std::shared_ptr<Image>> ImageStore::Create(Bytes size, Draw draw) {
  for (;;) {
    Result<std::vector<HostPool::Block>> blocks = pool_.Allocate(size, kImageChunk);
    if (blocks.ok()) {
      return std::shared_ptr<Image>(new Image(*this, size, *std::move(blocks), std::move(draw)));
    }
    if (blocks.status().reason() != "HOST_POOL_EXHAUSTED" || !MakeRoom(size)) {
      return blocks.status();
    }
  }
}

Result<std::shared_ptr<Image>> ImageStore::Restore(Bytes size, std::vector<HostPool::Block> blocks,
                                                   Draw draw) {
  Bytes sum{};
  for (const HostPool::Block& block : blocks) sum += block.size;
  if (sum != RoundUp(size, HostPool::kUnit)) {
    pool_.Free(blocks);
    return InvalidArgument("BAD_BLOCK", "the blocks of an image are of another size than it is")
        .With("image_bytes", size.value())
        .With("blocks_bytes", sum.value());
  }
  return std::shared_ptr<Image>(new Image(*this, size, std::move(blocks), std::move(draw)));
}

bool ImageStore::Hold(Image& image, Draw& draw) {
  MutexLock lock(mutex_);
  if (image.state_ != Image::State::kClean) return false;
  clean_.erase(image.place_);
  clean_bytes_ -= image.stored_;
  image.state_ = Image::State::kHeld;
  image.draw_ = std::move(draw);
  return true;
}

void ImageStore::Retire(Image& image) {
  Draw draw;  // returned when its room counts as free
  MutexLock lock(mutex_);
  image.state_ = Image::State::kClean;
  image.place_ = clean_.insert(clean_.end(), &image);
  clean_bytes_ += image.stored_;
  draw = std::move(image.draw_);
}

bool ImageStore::MakeRoom(Bytes size) {
  MutexLock lock(mutex_);
  const HostPool::Stats pool = pool_.stats();
  const Bytes left = pool.budget - pool.used;
  if (left >= size) return true;  // by now
  if (clean_.empty() || left + clean_bytes_ < size) return false;
  Image& image = *clean_.front();
  clean_.pop_front();
  clean_bytes_ -= image.stored_;
  image.stored_ = Bytes(0);
  image.state_ = Image::State::kTaken;
  image.chunks_.clear();
  pool_.Free(std::exchange(image.blocks_, {}));
  return true;
}

void ImageStore::End(Image& image) {
  MutexLock lock(mutex_);
  if (image.state_ == Image::State::kClean) {
    clean_.erase(image.place_);
    clean_bytes_ -= image.stored_;
  }
  // Before the draw is returned, which promises the room to others.
  pool_.Free(std::exchange(image.blocks_, {}));
}

ImageStore::Stats ImageStore::stats() const {
  MutexLock lock(mutex_);
  Stats stats{pool_.stats(), clean_bytes_};
  stats.pool.used -= clean_bytes_;
  return stats;
}

}  // namespace torpor
