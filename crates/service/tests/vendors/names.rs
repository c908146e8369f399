//! Vendors by model name, and permitted addresses.

use meerkat_service::{
    ErrorCode, SessionError,
    model::{
        ModelResolver,
        vendors::{CompatibleEndpoint, VendorAccess, VendorOptions},
    },
};

use crate::vendors::{KEY, models};

fn env(pairs: &'static [(&'static str, &'static str)]) -> VendorOptions {
    VendorOptions::from_env(move |name| {
        pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    })
}

fn endpoint(name: &str, base_url: &str) -> CompatibleEndpoint {
    CompatibleEndpoint {
        name: name.to_owned(),
        base_url: base_url.to_owned(),
        window_tokens: Some(32_768),
        ..Default::default()
    }
}

#[test]
fn a_name_leads_to_its_vendor_model_and_window() {
    let mut options = env(&[("ANTHROPIC_API_KEY", "a"), ("OPENAI_API_KEY", "o"), ("GOOGLE_API_KEY", "g")]);
    options.compatible = vec![endpoint("local", "http://localhost:8080/v1")];
    let models = models(&options).unwrap();
    let names = [
        ("scripted", "scripted", "scripted", 100_000),
        ("claude-sonnet-4-5", "anthropic", "claude-sonnet-4-5", 200_000),
        ("claude-sonnet-5-5", "anthropic", "claude-sonnet-5-5", 1_000_000),
        ("gpt-5", "openai", "gpt-5", 400_000),
        ("gpt-4.1-mini", "openai", "gpt-4.1-mini", 1_047_576),
        ("gpt-4o", "openai", "gpt-4o", 128_000),
        ("gpt-3.5-turbo", "openai", "gpt-3.5-turbo", 128_000),
        ("o3-mini", "openai", "o3-mini", 200_000),
        ("chatgpt-4o-latest", "openai", "chatgpt-4o-latest", 128_000),
        ("gemini-3.8-flash", "gemini", "gemini-3.8-flash", 1_048_576),
        ("anthropic/next", "anthropic", "next", 128_000),
        ("openai/gpt-4o", "openai", "gpt-4o", 128_000),
        ("gemini/gemma-3", "gemini", "gemma-3", 128_000),
        ("local/meta/llama", "local", "meta/llama", 32_768),
    ];
    for (name, vendor, model, window) in names {
        let found = models.resolve(name).unwrap();
        let told = (found.name.as_str(), found.client.vendor(), found.vendor_model.as_str(), found.window_tokens);
        assert_eq!(told, (name, vendor, model, window));
    }
    for name in ["", "llama", "local/", "anthropic/", "elsewhere/claude-x", "o1/x", "Scripted"] {
        let error = models.resolve(name).err().unwrap();
        assert!(
            matches!(&error, SessionError::ModelNotConfigured { model, variable: None } if model == name),
            "{error}"
        );
    }
}

#[test]
fn the_first_key_decides_the_default_and_a_missing_one_is_named() {
    let default = |options: &VendorOptions| models(options).unwrap().default_model().to_owned();
    let with = |model: &str, options| VendorOptions { default_model: Some(model.to_owned()), ..options };
    let all = env(&[("GEMINI_API_KEY", "g"), ("OPENAI_API_KEY", "o"), ("ANTHROPIC_API_KEY", "a")]);
    assert_eq!(default(&all), "claude-sonnet-5-5");
    assert_eq!(default(&env(&[("GEMINI_API_KEY", "g"), ("OPENAI_API_KEY", "o")])), "gpt-5.6-terra");
    assert_eq!(default(&env(&[("GEMINI_API_KEY", "g"), ("OPENAI_API_KEY", " ")])), "gemini-3.8-flash");
    assert_eq!(default(&env(&[("OPENAI_BASE_URL", "http://localhost:1/v1")])), "gpt-5.6-terra");
    assert_eq!(default(&with("scripted", all)), "scripted");
    let servers = |servers: &[(&str, Option<&str>)]| VendorOptions {
        compatible: servers
            .iter()
            .map(|(name, model)| CompatibleEndpoint {
                model: model.map(str::to_owned),
                ..endpoint(name, "http://localhost:1/v1")
            })
            .collect(),
        ..VendorOptions::default()
    };
    for (servers, expected, missing) in [
        (servers(&[("local", Some("qwen3"))]), "local/qwen3", None),
        (servers(&[("local", None)]), "local/", Some("\"local/<model>\"")),
        (servers(&[("a", Some("m")), ("b", Some("m"))]), "", Some("model.name")),
        (env(&[("OPENAI_BASE_URL", "http://localhost:1/v1")]), "gpt-5.6-terra", Some("OPENAI_API_KEY")),
    ] {
        let models = models(&servers).unwrap();
        assert_eq!((models.default_model(), models.is_stand_in()), (expected, false));
        let refused = models.resolve(expected).err().map(|error| error.to_string());
        assert!(refused.is_some() == missing.is_some() && refused.iter().all(|text| text.contains(missing.unwrap())));
    }
    assert!(models(&VendorOptions::default()).unwrap().is_stand_in());
    assert!(!models(&with("scripted", VendorOptions::default())).unwrap().is_stand_in());
    let none = VendorOptions { scripted_window_tokens: Some(7), ..env(&[("OPENAI_API_KEY", "")]) };
    let models = models(&none).unwrap();
    assert_eq!((models.default_model(), models.resolve("scripted").unwrap().window_tokens), ("scripted", 7));
    let missing = [("claude-x", "ANTHROPIC_API_KEY"), ("o1", "OPENAI_API_KEY"), ("gemini/x", "GEMINI_API_KEY")];
    for (name, needed) in missing {
        let error = models.resolve(name).err().unwrap();
        assert!(matches!(error, SessionError::ModelNotConfigured { variable: Some(named), .. } if named == needed));
    }
}

#[test]
fn a_server_elsewhere_is_reached_in_plain_text_only_as_the_user_says() {
    let server = |base_url: &str, allows_http| {
        let server = CompatibleEndpoint { allows_http, ..endpoint("ollama", base_url) };
        models(&VendorOptions { compatible: vec![server], ..VendorOptions::default() }).map(drop)
    };
    for address in ["http://192.168.1.20:11434/v1", "http://ollama:11434/v1"] {
        assert!(server(address, true).is_ok());
        assert!(server(address, false).unwrap_err().to_string().contains("insecure_http"));
    }
    assert!(server("http://169.254.169.254/v1", true).is_err(), "a metadata service stays out of reach");
}

#[test]
fn a_base_url_that_could_leak_a_key_is_refused() {
    let refused = [
        "http://example.com/v1",
        "http://10.0.0.1/v1",
        "http://0.0.0.0/v1",
        "http://localhost.example.com/v1",
        "ftp://localhost/v1",
        "file:///etc/passwd",
        "https://user:hunter2secret@example.com/v1",
        "https://user@example.com/v1",
        "https://example.com/v1?key=hunter2secret",
        "https://example.com/v1#x",
        "https://169.254.169.254/latest",
        "https://2852039166/latest",
        "https://0xa9fea9fe/latest",
        "https://[::ffff:169.254.169.254]/v1",
        "https://[64:ff9b::a9fe:a9fe]/v1",
        "https://[fe80::1]/v1",
        "https://[fd00:ec2::254]/v1",
        "https://100.100.100.200/v1",
        "https://0.0.0.0/v1",
        "hunter2secret",
        "",
    ];
    let allowed = [
        "https://example.com",
        "https://example.com/v1/",
        "https://10.0.0.1/v1",
        "http://127.0.0.1:1/v1",
        "http://127.8.9.1/",
        "http://[::1]:8080/v1",
        "http://localhost:8080/v1",
        "http://a.localhost/v1",
    ];
    for (url, is_allowed) in refused.iter().map(|url| (url, false)).chain(allowed.iter().map(|url| (url, true))) {
        let access = || VendorAccess { key: Some(KEY.into()), base_url: Some((*url).to_owned()) };
        let options = VendorOptions::default;
        for options in [
            VendorOptions { anthropic: access(), ..options() },
            VendorOptions { openai: access(), ..options() },
            VendorOptions { gemini: access(), ..options() },
            VendorOptions { compatible: vec![endpoint("local", url)], ..options() },
        ] {
            let error = models(&options).err();
            assert_eq!(error.is_none(), is_allowed, "{url}: {error:?}");
            if let Some(error) = error {
                assert_eq!(error.code(), ErrorCode::ConfigInvalid);
                assert!(error.to_string().starts_with("model."), "{error}");
                assert!(!format!("{error} {error:?}").contains("hunter2secret"), "{error}");
            }
        }
    }
}

#[test]
fn a_server_needs_a_name_of_its_own_and_a_proxy_a_url() {
    for names in [vec![""], vec!["a/b"], vec!["scripted"], vec!["openai"], vec!["twice", "twice"]] {
        let compatible = names.iter().map(|name| endpoint(name, "http://localhost:1/v1")).collect();
        let error = models(&VendorOptions { compatible, ..VendorOptions::default() }).err().unwrap();
        assert_eq!(error.code(), ErrorCode::ConfigInvalid, "{names:?}");
    }
    let proxied = |proxy: &'static str| VendorOptions {
        proxy: Some(proxy.into()),
        no_proxy: Some("*.local".to_owned()),
        ..env(&[("OPENAI_API_KEY", "o")])
    };
    for proxy in ["socks5://user:hunter2secret@127.0.0.1:1", "http://hunter2secret:x", "http://"] {
        let error = models(&proxied(proxy)).err().unwrap();
        assert!(error.code() == ErrorCode::ConfigInvalid && !error.to_string().contains("hunter2secret"), "{error}");
    }
    for proxy in ["http://user:hunter2secret@127.0.0.1:1", "127.0.0.1:3128"] {
        assert!(models(&proxied(proxy)).is_ok(), "{proxy}");
    }
}

#[test]
fn the_environment_is_read_and_what_it_holds_is_not_told() {
    let options = env(&[
        ("ANTHROPIC_API_KEY", " sk-planted-0123456789abcdef\n"),
        ("OPENAI_API_KEY", KEY),
        ("GEMINI_API_KEY", KEY),
        ("GOOGLE_API_KEY", "other"),
        ("ANTHROPIC_BASE_URL", "https://a.example"),
        ("OPENAI_BASE_URL", "https://o.example/v1"),
        ("HTTPS_PROXY", "http://user:sk-planted-proxy@localhost:1"),
        ("NO_PROXY", "localhost"),
    ]);
    use secrecy::ExposeSecret;
    let keys = [&options.anthropic.key, &options.openai.key, &options.gemini.key];
    assert!(keys.iter().all(|key| key.as_ref().is_some_and(|key| key.expose_secret() == KEY)));
    assert_eq!(options.anthropic.base_url.as_deref(), Some("https://a.example"));
    assert_eq!(options.openai.base_url.as_deref(), Some("https://o.example/v1"));
    assert_eq!(options.no_proxy.as_deref(), Some("localhost"));
    assert!(!format!("{options:?}").contains("planted"));
}
