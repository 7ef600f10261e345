//! The words of the attributes that have to do with recompression: pure.
//!
//! ```text
//!   recompress         [type=idle|huge|huge_idle] [threshold=BYTES] [max_pages=N] [algo=NAME] [priority=N]
//!   recomp_algorithm   algo=NAME [priority=N]
//!   algorithm_params   algo=NAME | priority=N   [level=N] [dict=PATH]
//! ```
//!
//! Source: `Documentation/admin-guide/blockdev/zram.rst`, Linux 6.12.

use super::super::backing::select::Mode;
use super::super::codec::{Algorithm, Codecs, Priority};
use super::super::memory::HUGE_BYTES;
use super::super::pages::Effort;

/// Which pages are compressed again, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Request {
    pub(super) mode: Mode,
    /// Smaller objects stay as they are, and new ones must be smaller, bytes; 0 for none.
    pub(super) threshold: usize,
    /// Pages that are tried at most.
    pub(super) max_pages: u64,
    algorithm: Option<Algorithm>,
    priority: Option<Priority>,
}

impl Request {
    /// Reads the words of a command; `None` when they are none.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (mut mode, mut threshold, mut max_pages, mut algorithm, mut priority) = (None, None, None, None, None);
        for word in text.split_whitespace() {
            match word.split_once('=')? {
                ("type", name) if mode.is_none() => mode = Some(mode_named(name)?),
                ("threshold", bytes) if threshold.is_none() => {
                    threshold = Some(usize::try_from(number(bytes)?).ok().filter(|bytes| *bytes < HUGE_BYTES)?);
                }
                ("max_pages", count) if max_pages.is_none() => max_pages = Some(number(count)?),
                ("algo", name) if algorithm.is_none() => algorithm = Some(Algorithm::named(name)?),
                ("priority", place) if priority.is_none() => priority = Some(second(place)?),
                _ => return None,
            }
        }
        Some(Self {
            mode: mode.unwrap_or(Mode::Any),
            threshold: threshold.unwrap_or(0),
            max_pages: max_pages.unwrap_or(u64::MAX),
            algorithm,
            priority,
        })
    }

    /// The codecs that it asks for; `None` where there is no such.
    pub(super) fn effort(&self, codecs: &Codecs) -> Option<Effort> {
        let asked = |priority: &Priority| {
            let algorithm = self.algorithm.is_none_or(|algorithm| codecs.algorithm(*priority) == Some(algorithm));
            algorithm && self.priority.is_none_or(|asked| asked == *priority)
        };
        let from = codecs.seconds().find(asked)?;
        let named = self.algorithm.is_some() || self.priority.is_some();
        let to = if named { from } else { Effort::FULL.to };
        Some(Effort { from, to, threshold: self.threshold })
    }
}

fn mode_named(name: &str) -> Option<Mode> {
    match name {
        "idle" => Some(Mode::Idle),
        "huge" => Some(Mode::Huge),
        "huge_idle" => Some(Mode::HugeIdle),
        _ => None,
    }
}

/// A codec that compresses again, 1 to 3.
fn second(text: &str) -> Option<Priority> {
    Priority::numbered(number(text)?).filter(|priority| *priority != Priority::FIRST)
}

fn number(text: &str) -> Option<u64> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if plain { text.parse().ok() } else { None }
}

/// Reads `algo=NAME [priority=N]`; the priority is 1 where none is given.
pub(in super::super) fn second_algorithm(text: &str) -> Option<(Algorithm, Priority)> {
    let (mut algorithm, mut priority) = (None, None);
    for word in text.split_whitespace() {
        match word.split_once('=')? {
            ("algo", name) if algorithm.is_none() => {
                algorithm = Some(Algorithm::named(name).filter(|algorithm| *algorithm != Algorithm::Store)?);
            }
            ("priority", place) if priority.is_none() => priority = Some(second(place)?),
            _ => return None,
        }
    }
    Some((algorithm?, priority.unwrap_or(Priority(1))))
}

/// What a codec is to be made from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Params {
    pub(in super::super) algorithm: Option<Algorithm>,
    pub(in super::super) priority: Option<Priority>,
    pub(in super::super) level: Option<i32>,
    pub(in super::super) dictionary: Option<String>,
}

impl Params {
    /// Reads `algo=NAME` or `priority=N`, `level=N` and `dict=PATH`; the first codec where none is named.
    pub(in super::super) fn parse(text: &str) -> Option<Self> {
        let mut params = Self::default();
        for word in text.split_whitespace() {
            match word.split_once('=')? {
                ("algo", name) if params.algorithm.is_none() => params.algorithm = Some(Algorithm::named(name)?),
                ("priority", place) if params.priority.is_none() => params.priority = Some(Priority::numbered(number(place)?)?),
                ("level", level) if params.level.is_none() => params.level = Some(level.parse().ok()?),
                ("dict", path) if params.dictionary.is_none() && !path.is_empty() => params.dictionary = Some(path.to_owned()),
                _ => return None,
            }
        }
        (!text.trim().is_empty()).then_some(params)
    }

    /// Whose they are; `None` where there is no such codec.
    pub(in super::super) fn place(&self, codecs: &Codecs) -> Option<Priority> {
        let named = |priority: &Priority| match (self.algorithm, self.priority) {
            (None, None) => *priority == Priority::FIRST,
            (algorithm, asked) => {
                asked.is_none_or(|asked| asked == *priority)
                    && algorithm.is_none_or(|algorithm| codecs.algorithm(*priority) == Some(algorithm))
            }
        };
        Priority::ALL.into_iter().filter(|priority| codecs.params(*priority).is_some()).find(named)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::CodecParams;
    use super::*;

    fn codecs() -> Codecs {
        let params = |algorithm, level| CodecParams { algorithm, level, dictionary: None };
        let list = [
            params(Algorithm::Lz4, None),
            params(Algorithm::Zstd, Some(1)),
            params(Algorithm::Deflate, None),
            params(Algorithm::Zstd, Some(19)),
        ];
        Codecs::new(&list).unwrap()
    }

    fn effort(text: &str) -> Option<(u8, u8)> {
        Request::parse(text).unwrap().effort(&codecs()).map(|effort| (effort.from.0, effort.to.0))
    }

    #[test]
    fn commands_are_read() {
        let request = Request::parse("type=huge_idle threshold=3000 max_pages=42\n").unwrap();
        assert_eq!((request.mode, request.threshold, request.max_pages), (Mode::HugeIdle, 3000, 42));
        let all = Request::parse("").unwrap();
        assert_eq!((all.mode, all.threshold, all.max_pages), (Mode::Any, 0, u64::MAX));
        for text in [
            "idle",
            "type=all",
            "type=",
            "threshold=3625",
            "threshold=-1",
            "threshold=1K",
            "max_pages=",
            "algo=lzo",
            "priority=0",
            "priority=4",
            "speed=1",
            "type=idle type=idle",
        ] {
            assert_eq!(Request::parse(text), None, "{text}");
        }
        assert!(Request::parse("threshold=3624").is_some());
    }

    #[test]
    fn all_codecs_are_tried_or_the_one_that_is_named() {
        assert_eq!(effort(""), Some((1, 3)));
        assert_eq!(effort("algo=zstd"), Some((1, 1)));
        assert_eq!(effort("algo=zstd priority=3"), Some((3, 3)));
        assert_eq!(effort("priority=2"), Some((2, 2)));
        assert_eq!(effort("algo=lz4"), None, "the first codec compresses nothing again");
        assert_eq!(effort("algo=deflate priority=1"), None);
        let alone = Codecs::new(&[CodecParams::default()]).unwrap();
        assert_eq!(Request::parse("").unwrap().effort(&alone), None);
    }

    #[test]
    fn second_algorithms_are_read() {
        assert_eq!(second_algorithm("algo=zstd\n"), Some((Algorithm::Zstd, Priority(1))));
        assert_eq!(second_algorithm("priority=3 algo=deflate"), Some((Algorithm::Deflate, Priority(3))));
        for text in ["", "zstd", "algo=zstd priority=0", "algo=zstd priority=4", "priority=1", "algo=store", "algo=zstd algo=lz4"]
        {
            assert_eq!(second_algorithm(text), None, "{text}");
        }
    }

    #[test]
    fn parameters_belong_to_the_codec_that_is_named() {
        let place = |text| Params::parse(text).and_then(|params| params.place(&codecs())).map(|priority| priority.0);
        assert_eq!(place("level=3"), Some(0));
        assert_eq!(place("algo=zstd level=3"), Some(1));
        assert_eq!(place("priority=3 level=3"), Some(3));
        assert_eq!(place("priority=3 algo=lz4"), None);
        assert_eq!(place("algo=store"), None);
        let params = Params::parse("algo=zstd level=-5 dict=/a").unwrap();
        assert_eq!((params.level, params.dictionary.as_deref()), (Some(-5), Some("/a")));
        for text in ["", "level", "level=x", "level=1 level=2", "priority=4", "dict=", "algo=lzma", "speed=1"] {
            assert_eq!(Params::parse(text), None, "{text}");
        }
    }
}
