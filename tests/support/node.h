#pragma once
// Core declares Node and leaves it to the tape to say what it is. Tests of core alone need some.

namespace mixtape {

class Node {};

}  // namespace mixtape
