//! The errors that NBD knows, and which of them a failed block operation becomes.
//!
//! 1. The table is exhaustive: a new [`Status`] does not compile until it has its error.
//! 2. `NBD_ENOTSUP` is only ever the answer to a fast zero request, as the protocol demands.
//!
//! Source: the section on error values of the NBD protocol document.

use forebay_block::Status;

/// An error as it goes over the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// `NBD_EPERM`: the export is read-only.
    NotPermitted,
    /// `NBD_EIO`: the device failed.
    Io,
    /// `NBD_EINVAL`: the request is wrong.
    Invalid,
    /// `NBD_ENOSPC`: no space, or a write beyond the end.
    NoSpace,
    /// `NBD_EOVERFLOW`: an unfragmented read is too large.
    TooLarge,
    /// `NBD_ENOTSUP`: zeroing would not be fast.
    NotSupported,
    /// `NBD_ESHUTDOWN`: the server is going away.
    ShuttingDown,
}

impl WireError {
    /// The number on the wire.
    #[must_use]
    pub const fn code(self) -> u32 {
        match self {
            Self::NotPermitted => 1,
            Self::Io => 5,
            Self::Invalid => 22,
            Self::NoSpace => 28,
            Self::TooLarge => 75,
            Self::NotSupported => 95,
            Self::ShuttingDown => 108,
        }
    }

    /// What a block operation that ended with `status` is answered with; `None` is success.
    ///
    /// `fast_zero` says that the client asked for zeroing only if it is fast.
    #[must_use]
    pub const fn from_status(status: Status, fast_zero: bool) -> Option<Self> {
        match status {
            Status::Ok => None,
            // The protocol has no "try again"; a client that gets EIO decides that for itself.
            Status::IoError | Status::Again => Some(Self::Io),
            Status::NoSpace => Some(Self::NoSpace),
            Status::ReadOnly => Some(Self::NotPermitted),
            Status::Unsupported if fast_zero => Some(Self::NotSupported),
            Status::Unsupported => Some(Self::Invalid),
            Status::Aborted => Some(Self::ShuttingDown),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each status, whether the request was a fast zero, and the number the client sees.
    const TABLE: [(Status, bool, u32); 14] = [
        (Status::Ok, false, 0),
        (Status::Ok, true, 0),
        (Status::IoError, false, 5),
        (Status::IoError, true, 5),
        (Status::NoSpace, false, 28),
        (Status::NoSpace, true, 28),
        (Status::ReadOnly, false, 1),
        (Status::ReadOnly, true, 1),
        (Status::Unsupported, false, 22),
        (Status::Unsupported, true, 95),
        (Status::Aborted, false, 108),
        (Status::Aborted, true, 108),
        (Status::Again, false, 5),
        (Status::Again, true, 5),
    ];

    fn code(status: Status, fast_zero: bool) -> u32 {
        WireError::from_status(status, fast_zero).map_or(0, WireError::code)
    }

    #[test]
    fn every_status_has_its_number() {
        for status in Status::ALL {
            for fast_zero in [false, true] {
                let rows: Vec<u32> = TABLE.iter().filter(|row| (row.0, row.1) == (status, fast_zero)).map(|row| row.2).collect();
                assert_eq!(rows, [code(status, fast_zero)], "{status:?} {fast_zero}");
            }
        }
    }

    #[test]
    fn every_number_comes_from_exactly_the_statuses_meant() {
        for number in 0..=u32::from(u8::MAX) {
            let meant: Vec<_> = TABLE.iter().filter(|row| row.2 == number).map(|row| (row.0, row.1)).collect();
            let real: Vec<_> = Status::ALL
                .iter()
                .flat_map(|status| [(*status, false), (*status, true)])
                .filter(|(status, fast_zero)| code(*status, *fast_zero) == number)
                .collect();
            for pair in &real {
                assert!(meant.contains(pair), "{pair:?} must not become {number}");
            }
            assert_eq!(real.len(), meant.len(), "number {number}");
        }
    }

    #[test]
    fn only_success_is_no_error_and_fast_zero_alone_is_told_not_supported() {
        for status in Status::ALL {
            for fast_zero in [false, true] {
                let error = WireError::from_status(status, fast_zero);
                assert_eq!(error.is_none(), status.is_ok());
                assert!(error != Some(WireError::NotSupported) || fast_zero);
            }
        }
    }
}
