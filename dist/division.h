#pragma once
// Division: parameters laid out in flat buffers, which are cut into a piece for each rank of a
// World.

#include <unordered_map>
#include <utility>

#include "core/state_dict.h"
#include "dist/exchange.h"
#include "optim/sharing.h"

namespace mixtape::dist {

class Division final : public optim::Sharing {
 public:
  struct Item {  // a parameter
    Tensor whole, piece;
    bool uncut = false;            // one rank has all of it, as a piece of its shape
    size_t buffer = 0, place = 0;  // in Buffer::items
    int64_t offset = 0;            // in Buffer::data
    Cut cut = {};                  // of its elements
  };
  struct Buffer {
    Tensor data = {};
    std::vector<size_t> items = {};                       // in the order of offsets
    int64_t size = 0;                                     // of data
    int64_t bytes = 0;                                    // of gradients
    std::vector<std::pair<size_t, int64_t>> joints = {};  // see Bucket::Options::cut
    Cut cut = {};                                         // of data
  };

  // Divides the parameters that train. They become views of the buffers, in reverse order, in which
  // their gradients arrive. Each `uncut` parameter goes to one rank.
  Division(const std::shared_ptr<Exchange>& exchange, const std::vector<Tensor>& parameters,
           const std::vector<bool>& uncut, double bucket_mb);
  void end();  // makes parameters whole again; pieces are then useless

  // True for a divided parameter and for its piece.
  bool has(const Tensor& t) const { return by_id_.contains(t.id()); }
  const Item& item(const Tensor& t) const { return items_[by_id_.at(t.id())]; }
  const Item& item(size_t i) const { return items_[i]; }
  // The rank that has an uncut parameter, and a test that it is another rank.
  static size_t owner(const Item& item);
  bool is_elsewhere(const Tensor& t) const { return item(t).uncut && owner(item(t)) != rank_; }
  const Buffer& buffer(size_t i) const { return buffers_[i]; }
  // A copy of this rank's part of `whole`, a tensor of the parameter's shape or one with a number
  // for each `block` of elements.
  Tensor own_part(const Item& item, const Tensor& whole, int64_t block) const;
  // Every rank's dict, on the CPU, if any parameter is uncut. All ranks must call it.
  std::vector<StateDict> gather(const StateDict& own) const;
  // The tensor of which the ranks have such parts, on the CPU. All ranks must call it.
  Tensor joined(const Item& item, const Tensor& part, int64_t block) const;

  Tensor piece_of(const Tensor& t) const override { return item(t).piece; }
  Tensor whole_of(const Tensor& t) const override { return item(t).whole; }
  int64_t first_of(const Tensor& t) const override { return item(t).cut[rank_]; }
  Tensor joined(const Tensor& t, const Tensor& part) const override {
    return joined(item(t), part, 1);
  }
  void begin_step() override;
  void end_step() override;
  Tensor join(const std::vector<Tensor>& tensors, const Tensor& parts, const Tensor& found,
              bool steps) override;

 private:
  void lay(double bucket_mb);
  void cut_buffers();
  Tensor place_of(const Item& item) const;  // its view of the buffer
  static Cut cut_of(const Item& item, int64_t block);
  std::pair<size_t, int64_t> joint_near(const Buffer& buffer, int64_t wanted) const;
  int64_t parts_of(const Tensor& t, int rank) const;
  Tensor in_order(const std::vector<Tensor>& tensors, const std::vector<std::vector<double>>& all,
                  size_t flags, int64_t width) const;
  std::vector<std::vector<double>> meet(const std::vector<double>& words) const;

  std::shared_ptr<Exchange> exchange() const;  // throws Error if its World has ended

  const std::weak_ptr<Exchange> exchange_;
  const size_t rank_, ranks_;
  std::vector<Item> items_;
  std::vector<Buffer> buffers_;
  std::unordered_map<const void*, size_t> by_id_;
  int64_t steps_ = 0;
  bool has_met_ = false;  // in this step
};

std::shared_ptr<Division> division_of(const Tensor& parameter);  // null if it is not divided

}  // namespace mixtape::dist
