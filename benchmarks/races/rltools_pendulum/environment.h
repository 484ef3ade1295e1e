// RLtools' own pendulum in C++, for its Python interface.
#include <rl_tools/rl/environments/pendulum/operations_cpu.h>

template <typename T, typename TI>
using ENVIRONMENT_FACTORY = rl_tools::rl::environments::Pendulum<
    rl_tools::rl::environments::pendulum::Specification<T, TI, rl_tools::rl::environments::pendulum::DefaultParameters<T>>>;
