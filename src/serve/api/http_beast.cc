// Beast's and Asio's out-of-line code, compiled once.
#include <boost/asio/impl/src.hpp>
#include <boost/beast/src.hpp>
