// Theme. Runs before the first paint; a module would run too late and cause a flash.
'use strict';
{
  const ORDER = ['system', 'light', 'dark'];
  const saved = () => {
    try {
      return ORDER.includes(localStorage.getItem('slidegate-theme'))
        ? localStorage.getItem('slidegate-theme')
        : 'system';
    } catch {
      return 'system'; // storage may be disabled
    }
  };
  const apply = (theme) => {
    if (theme === 'system') document.documentElement.removeAttribute('data-theme');
    else document.documentElement.setAttribute('data-theme', theme);
  };
  let theme = saved();
  apply(theme);

  const label = (button) => {
    button.textContent = `Theme: ${theme}`;
  };
  addEventListener('DOMContentLoaded', () => {
    const button = document.getElementById('theme');
    label(button);
    button.addEventListener('click', () => {
      theme = ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length];
      try {
        localStorage.setItem('slidegate-theme', theme);
      } catch {
        // Without storage it lasts until the page is closed.
      }
      apply(theme);
      label(button);
      dispatchEvent(new Event('themechange'));
    });
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => dispatchEvent(new Event('themechange')));
}
